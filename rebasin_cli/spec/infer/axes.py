"""Axes whose permutations are unknown, and the equations between them.

Every axis of every tensor is an expression over variables, each an independent permutation:

    Var      n units in an order of their own
    Fixed    n positions that stay, and why
    Product  row-major factors of one flattened axis
    Sum      segments one after another

`Units` holds what is known. `unify` says that two axes are permuted alike, `freeze` that one is not
permuted, `cut` and `regroup` that somebody looks at parts of an axis. Each may only *refine* variables
(u becomes v, or a product, a sum, a constant), that is, pass to a smaller group of permutations; so whatever
was true of a network before stays true after, in whichever order its operations are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

COPIES = 256  # more than this many copies of a factor are not written out, but frozen


@dataclass(frozen=True)
class Var:
    id: int
    size: int


@dataclass(frozen=True)
class Fixed:
    size: int
    why: str = field(default="", compare=False)


@dataclass(frozen=True)
class Product:
    factors: tuple[Expr, ...]

    @property
    def size(self) -> int:
        return math.prod(factor.size for factor in self.factors)


@dataclass(frozen=True)
class Sum:
    terms: tuple[Expr, ...]

    @property
    def size(self) -> int:
        return sum(term.size for term in self.terms)


Expr = Var | Fixed | Product | Sum
Axes = tuple[Expr, ...]


def product(factors: Sequence[Expr]) -> Expr:
    """Flat, without factors of 1, constants that touch joined."""
    flat: list[Expr] = []
    for factor in (f for part in factors for f in (part.factors if isinstance(part, Product) else (part,))):
        if factor.size == 1:
            continue
        if flat and isinstance(flat[-1], Fixed) and isinstance(factor, Fixed):
            flat[-1] = Fixed(flat[-1].size * factor.size, flat[-1].why or factor.why)
        else:
            flat.append(factor)
    if len(flat) > 1:
        return Product(tuple(flat))
    return flat[0] if flat else Fixed(1)


def total(terms: Sequence[Expr]) -> Expr:
    """Flat, without empty terms, constants that touch joined."""
    flat: list[Expr] = []
    for term in (t for part in terms for t in (part.terms if isinstance(part, Sum) else (part,))):
        if term.size == 0:
            continue
        if flat and isinstance(flat[-1], Fixed) and isinstance(term, Fixed):
            flat[-1] = Fixed(flat[-1].size + term.size, flat[-1].why or term.why)
        else:
            flat.append(term)
    if len(flat) > 1:
        return Sum(tuple(flat))
    return flat[0] if flat else Fixed(0)


def variables(axis: Expr) -> Iterator[Var]:
    """The variables of a resolved axis, left to right, with repetitions."""
    if isinstance(axis, Var):
        yield axis
    for part in parts(axis):
        yield from variables(part)


def constants(axis: Expr) -> Iterator[Fixed]:
    if isinstance(axis, Fixed):
        yield axis
    for part in parts(axis):
        yield from constants(part)


def parts(axis: Expr) -> tuple[Expr, ...]:
    if isinstance(axis, Product):
        return axis.factors
    return axis.terms if isinstance(axis, Sum) else ()


class Units:
    """What is known about the variables so far."""

    def __init__(self) -> None:
        self._bound: dict[int, Expr] = {}
        self._count = 0

    def new(self, size: int) -> Expr:
        """Units in an order of their own; a single one has no choice."""
        self._count += 1
        return Var(self._count, size) if size > 1 else Fixed(size)

    def resolve(self, axis: Expr) -> Expr:
        if isinstance(axis, Var):
            if axis.id not in self._bound:
                return axis
            found = self._bound[axis.id] = self.resolve(self._bound[axis.id])
            return found
        if isinstance(axis, Product):
            return product([self.resolve(factor) for factor in axis.factors])
        if isinstance(axis, Sum):
            return total([self.resolve(term) for term in axis.terms])
        return axis

    def freeze(self, axis: Expr, why: str) -> Expr:
        """Its units stay where they are."""
        for var in variables(self.resolve(axis)):
            self._bound.setdefault(var.id, Fixed(var.size, why))
        return Fixed(axis.size, why)

    def unify(self, a: Expr, b: Expr, why: str) -> Expr:
        """Both are permuted alike; `why` is told where that cannot be said in products and sums."""
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return a
        if a.size != b.size:
            raise ValueError(f"{a.size} units meet {b.size}")
        if isinstance(a, Var):
            self._bound[a.id] = b
        elif isinstance(b, Var):
            self._bound[b.id] = a
        elif isinstance(a, Fixed) or isinstance(b, Fixed):
            constant, other = (a, b) if isinstance(a, Fixed) else (b, a)
            self.freeze(other, constant.why or why)
        elif isinstance(a, Product) and isinstance(b, Product):
            self._unify_factors(list(a.factors), list(b.factors), why)
        else:
            self._unify_terms(a, b, why)
        return self.resolve(a)

    def _unify_factors(self, left: list[Expr], right: list[Expr], why: str) -> None:
        while left and right:
            a, b = self._head(left), self._head(right)
            small = min(a.size, b.size)
            if a.size % small or b.size % small:
                for rest in (a, b, *left, *right):
                    self.freeze(rest, why)
                return
            # the larger one gives its outer part; what it keeps stands in front of the rest
            for axis, rest in ((a, left), (b, right)):
                if axis.size > small:
                    outer, inner = self.factor(axis, small, why)
                    rest.insert(0, inner)
                    a, b = (outer, b) if axis is a else (a, outer)
            self.unify(a, b, why)

    def _head(self, factors: list[Expr]) -> Expr:
        axis = self.resolve(factors.pop(0))
        if isinstance(axis, Product):
            factors[:0] = axis.factors[1:]
            return axis.factors[0]
        return axis

    def _unify_terms(self, a: Expr, b: Expr, why: str) -> None:
        left, right = [a], [b]
        while left and right:
            for side in (left, right):
                side[0] = self.resolve(side[0])
                if isinstance(side[0], Sum):
                    side[:1] = side[0].terms
            x, y = left.pop(0), right.pop(0)
            if x.size > y.size:
                x, rest = self.cut(x, y.size, why)
                left.insert(0, rest)
            elif y.size > x.size:
                y, rest = self.cut(y, x.size, why)
                right.insert(0, rest)
            self.unify(x, y, why)

    def cut(self, axis: Expr, at: int, why: str) -> tuple[Expr, Expr]:
        """The first `at` positions and the others; no permutation crosses the cut any more."""
        axis = self.resolve(axis)
        if at in (0, axis.size):
            return (axis, Fixed(0)) if at else (Fixed(0), axis)
        if isinstance(axis, Fixed):
            return Fixed(at, axis.why), Fixed(axis.size - at, axis.why)
        if isinstance(axis, Var):
            pair = self.new(at), self.new(axis.size - at)
            self._bound[axis.id] = total(pair)
            return pair
        if isinstance(axis, Sum):
            return self._cut_terms(list(axis.terms), at, why)
        outer, inner = axis.factors[0], product(axis.factors[1:])
        if at % inner.size == 0:
            left, right = self.cut(outer, at // inner.size, why)
            return product([left, inner]), product([right, inner])
        if outer.size > COPIES:
            self.freeze(axis, why)
            return Fixed(at, why), Fixed(axis.size - at, why)
        self.freeze(outer, why)
        return self._cut_terms([inner] * outer.size, at, why)

    def _cut_terms(self, terms: list[Expr], at: int, why: str) -> tuple[Expr, Expr]:
        left: list[Expr] = []
        while at:
            term = terms.pop(0)
            if term.size > at:
                first, rest = self.cut(term, at, why)
                left.append(first)
                terms.insert(0, rest)
                at = 0
            else:
                left.append(term)
                at -= term.size
        return self.resolve(total(left)), self.resolve(total(terms))

    def pieces(self, axis: Expr, sizes: Sequence[int], why: str) -> list[Expr]:
        """The axis cut into segments of these sizes."""
        found = []
        for size in sizes[:-1]:
            piece, axis = self.cut(axis, size, why)
            found.append(piece)
        return [*found, self.resolve(axis)]

    def factor(self, axis: Expr, outer: int, why: str) -> tuple[Expr, Expr]:
        """A single factor as the product of an outer one of this size and an inner one."""
        axis = self.resolve(axis)
        inner = axis.size // outer
        if isinstance(axis, Var):
            pair = self.new(outer), self.new(inner)
            self._bound[axis.id] = product(pair)
            return pair
        if isinstance(axis, Product):
            first, second = self.split(axis, (outer, inner), why)
            return first, second
        if isinstance(axis, Sum) and all(term.size % inner == 0 for term in axis.terms):
            halves = [self.split(term, (term.size // inner, inner), why) for term in axis.terms]
            for _, other in halves[1:]:
                self.unify(halves[0][1], other, why)
            return self.resolve(total([first for first, _ in halves])), self.resolve(halves[0][1])
        if isinstance(axis, Sum) and outer <= COPIES:
            rows = self.pieces(axis, [inner] * outer, why)
            for other in rows[1:]:
                self.unify(rows[0], other, why)
            return Fixed(outer, why), self.resolve(rows[0])
        told = self.freeze(axis, why) if isinstance(axis, Sum) else axis
        return Fixed(outer, told.why), Fixed(inner, told.why)

    def split(self, axis: Expr, sizes: Sequence[int], why: str) -> list[Expr]:
        """The axis as row-major factors of these sizes."""
        factors, found = [axis], []
        for size in sizes:
            taken: list[Expr] = []
            while size > 1:
                head = self._head(factors)
                if size % head.size == 0:
                    size //= head.size
                    taken.append(head)
                elif head.size % size == 0:
                    outer, inner = self.factor(head, size, why)
                    factors.insert(0, inner)
                    taken.append(outer)
                    size = 1
                else:  # 6 units as rows of 4
                    self.freeze(axis, why)
                    return [Fixed(n, why) for n in sizes]
            found.append(product(taken))
        return [self.resolve(part) for part in found]

    def regroup(self, axes: Sequence[Expr], shape: Sequence[int], why: str) -> Axes:
        """The axes after a reshape."""
        if 0 in shape:
            return tuple(Fixed(n) for n in shape)
        old, new, found = list(axes), list(shape), []
        while old or new:
            group, sizes = [old.pop(0)] if old else [], [new.pop(0)] if new else []
            while (have := math.prod(axis.size for axis in group)) != (want := math.prod(sizes)):
                if have < want:
                    group.append(old.pop(0))
                else:
                    sizes.append(new.pop(0))
            if sizes:
                found += self.split(product([self.resolve(axis) for axis in group]), sizes, why)
        return tuple(found)
