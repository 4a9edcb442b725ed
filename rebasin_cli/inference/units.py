"""Equations between axes, and what is known from them.

`unify` says that two axes are permuted alike, `freeze` that one is not permuted, `cut` and `regroup` that
somebody looks at parts of an axis. Each may only *refine* variables (u becomes v, or a product, a sum, a
constant), that is, pass to a smaller group of permutations; so whatever was true of a network before stays
true after, in whichever order its operations are read.

The order of a variable may depend on where one is along others, its *parents*: within each head a
permutation of its own. Splitting an axis of unknown order into (heads, dim) makes `dim` one that depends on
`heads`. What tells the heads apart no longer, because it lost that axis or has it elsewhere, takes the
parent away, and the heads have one order in common. Parents are kept as constraints, the sets that they may
be taken from, and are read off when asked for: what their variables have become by then counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from .axes import Axes, Expr, Fixed, Product, Sum, Var, factors, product, total, variables

COPIES = 256  # more than this many copies of a factor are not written out, but frozen

Parents = frozenset[Var]
NONE: Parents = frozenset()


class Units:
    """What is known about the variables so far."""

    def __init__(self) -> None:
        self._bound: dict[int, Expr] = {}
        self._limits: dict[int, list[Parents]] = {}  # by variable: its parents are in each of these sets
        self.sorted_by: list[tuple[Expr, Expr]] = []  # rows, and the units that they are sorted by

    def new(self, size: int, within: Iterable[Expr] = ()) -> Expr:
        """Units in an order of their own, for each position along `within`; a single one has no choice."""
        return self._new(size, [frozenset(var for axis in within for var in variables(self.resolve(axis)))])

    def free(self, size: int) -> Expr:
        """Units that are all equal, so in any order that somebody needs."""
        return self._new(size, [])

    def _new(self, size: int, limits: Iterable[Parents]) -> Expr:
        if size <= 1:
            return Fixed(size)
        var = Var(len(self._limits) + 1, size)
        self._limits[var.id] = list(limits)
        return var

    def is_free(self, axis: Expr) -> bool:
        axis = self.resolve(axis)
        return isinstance(axis, Var) and not self._limits[axis.id]

    def parents(self, var: Var, _asked: frozenset[int] = frozenset()) -> Parents:
        """The variables along which the order of this one varies.

        They are closed: whatever a parent depends on is a parent, too. Else orders could not be
        composed.
        """
        limits = self._limits[var.id]
        if not limits or not all(limits) or var.id in _asked:
            return NONE
        found = frozenset.intersection(*map(self._now, limits))
        asked = _asked | {var.id}
        while open_ := {p for p in found if p == var or not self.parents(p, asked) <= found}:
            found -= open_
        return found

    def _now(self, limit: Parents) -> Parents:
        """What these variables have become; one cut into segments tells nothing apart any longer."""
        return frozenset(var for parent in limit for var in factors(self.resolve(parent)))

    def _within(self, axis: Expr, scope: Parents = NONE) -> Iterator[tuple[Var, Parents]]:
        """Every variable of a resolved axis, with those that its position on this axis determines."""
        if isinstance(axis, Var):
            yield axis, scope
        elif isinstance(axis, Product):
            for k, factor in enumerate(axis.factors):
                others = (*axis.factors[:k], *axis.factors[k + 1 :])
                yield from self._within(factor, scope.union(*map(factors, others)))
        elif isinstance(axis, Sum):
            for term in axis.terms:
                yield from self._within(term, scope)

    def _keep(self, axis: Expr, along: Parents) -> None:
        """Parents of its variables must be on this axis, or among `along`."""
        for var, scope in list(self._within(axis)):
            if not self._limits[var.id] or not self.parents(var) <= along | scope:
                self._limits[var.id].append(along | scope)

    def limit(self, var: Var, parents: Parents) -> None:
        """Its order depends on these at most."""
        self._limits[var.id].append(parents)

    def external(self, axis: Expr) -> Parents:
        """The parents of its variables that are not on this axis."""
        found = (self.parents(var) - scope for var, scope in self._within(self.resolve(axis)))
        return NONE.union(*found)

    def ground(self, axes: Sequence[Expr]) -> None:
        """Take away the parents that a tensor with these axes does not have, or has more than once."""
        for k, axis in enumerate(axes):
            if self.external(axis):
                self._keep(self.resolve(axis), frozenset(self._places(axes, k)))

    def aligned(self, rows: Sequence[Sequence[Expr]], at: int | None = None) -> Parents:
        """The variables that all rows of axes have once and at the same place, `at` not counted."""
        places = [self._places(axes, at) for axes in rows]
        return frozenset(var for var, k in places[0].items() if all(p.get(var) == k for p in places[1:]))

    def _places(self, axes: Sequence[Expr], but: int | None) -> dict[Var, int]:
        resolved = [Fixed(1) if k == but else self.resolve(axis) for k, axis in enumerate(axes)]
        every = [var for axis in resolved for var in variables(axis)]
        found = {var: k for k, axis in enumerate(resolved) for var in factors(axis) if every.count(var) == 1}
        for rows, names in self.sorted_by:  # where one is along sorted rows tells what they are sorted by
            if (k := found.get(self.resolve(rows))) is not None:
                found |= {var: k for var in factors(self.resolve(names)) if var not in every}
        return found

    def tells(self, axis: Expr, names: Expr) -> bool:
        """Whether rows along this axis are sorted by these units."""
        here, by = self.resolve(axis), self.resolve(names)
        return any(self.resolve(a) == here and self.resolve(b) == by for a, b in self.sorted_by)

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

    def unify(self, a: Expr, b: Expr, why: str, along: Parents = NONE) -> Expr:
        """Both are permuted alike; `why` is told where that cannot be said in products and sums.

        `along` are variables of other axes that both have at the same place, so that orders may depend
        on them.
        """
        a, b = self.resolve(a), self.resolve(b)
        if a.size != b.size:
            raise ValueError(f"{a.size} units meet {b.size}")
        self._keep(a, along)
        self._keep(b, along)
        return self._unify(a, b, why)

    def _unify(self, a: Expr, b: Expr, why: str) -> Expr:
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return a
        if isinstance(a, Var):
            self._bind(a, b)
        elif isinstance(b, Var):
            self._bind(b, a)
        elif isinstance(a, Fixed) or isinstance(b, Fixed):
            constant, other = (a, b) if isinstance(a, Fixed) else (b, a)
            self.freeze(other, constant.why or why)
        elif isinstance(a, Product) and isinstance(b, Product):
            self._unify_factors(list(a.factors), list(b.factors), why)
        else:
            self._unify_terms(a, b, why)
        return self.resolve(a)

    def _bind(self, var: Var, axis: Expr) -> None:
        """From now on the variable is this; what it must not depend on, its parts must not."""
        self._bound[var.id] = axis
        limits = self._limits[var.id]
        for part, scope in list(self._within(axis)):
            known = self._limits[part.id]
            known += [new for limit in limits if (new := limit | scope) not in known]

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
            self._unify(a, b, why)

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
            self._unify(x, y, why)

    def cut(self, axis: Expr, at: int, why: str) -> tuple[Expr, Expr]:
        """The first `at` positions and the others; no permutation crosses the cut any more."""
        axis = self.resolve(axis)
        if at in (0, axis.size):
            return (axis, Fixed(0)) if at else (Fixed(0), axis)
        if isinstance(axis, Fixed):
            return Fixed(at, axis.why), Fixed(axis.size - at, axis.why)
        if isinstance(axis, Var):
            limits = self._limits[axis.id]
            pair = self._new(at, limits), self._new(axis.size - at, limits)
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
            return self._blocks(axis, outer)
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

    def _blocks(self, axis: Var, count: int) -> tuple[Expr, Expr]:
        """Blocks in an order of their own, and within each block one of its own."""
        limits = self._limits[axis.id]
        outer = self._new(count, limits)
        own = frozenset(variables(outer))
        pair = outer, self._new(axis.size // count, [limit | own for limit in limits])
        self._bound[axis.id] = product(pair)
        return pair

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
