"""Equations between axes, and what is known from them.

`unify` says that two axes are permuted alike, `freeze` that one is not permuted, `cut` and `regroup` that
somebody looks at parts of an axis. Each may only *refine* variables (u becomes v, or a product, a sum, a
constant), that is, pass to a smaller group of permutations; so whatever was true of a network before stays
true after, in whichever order its operations are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from .axes import Axes, Expr, Fixed, Product, Sum, Var, places, product, total, united, variables
from .orders import NONE, Orders, Parents

COPIES = 256  # more than this many copies of a factor are not written out, but frozen


class Units(Orders):
    """The equations so far."""

    def freeze(self, axis: Expr, why: str) -> Fixed:
        """Its units stay where they are."""
        for var in variables(self.resolve(axis)):
            self._bound.setdefault(var.id, Fixed(var.size, why, var=var))
        return Fixed(axis.size, why)

    def unify(self, a: Expr, b: Expr, why: str, along: Parents = NONE) -> Expr:
        """Both are permuted alike; `why` is told where that cannot be said in products and sums.

        `along` are variables of other axes that both have at the same place, so that orders may depend
        on them. What is returned tells apart all blocks that either does.
        """
        a, b = self.resolve(a), self.resolve(b)
        if a.size != b.size:
            raise ValueError(f"{a.size} units meet {b.size}")
        self._keep(a, along)
        self._keep(b, along)
        self._unify(a, b, why)
        return united(self.resolve(a), self.resolve(b))

    def _unify(self, a: Expr, b: Expr, why: str) -> None:
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return
        if isinstance(a, Var):
            self._bind(a, b)
        elif isinstance(b, Var):
            self._bind(b, a)
        elif isinstance(a, Fixed):
            self._unify_fixed(a, b, why)
        elif isinstance(b, Fixed):
            self._unify_fixed(b, a, why)
        elif isinstance(a, Product) and isinstance(b, Product):
            self._unify_factors(list(a.factors), list(b.factors), why)
        else:
            self._unify_terms(a, b, why)

    def _unify_fixed(self, constant: Fixed, other: Expr, why: str) -> None:
        if constant.made and isinstance(other, Product):  # each factor for its own reason
            self._unify_factors([constant], [other], why)
        else:
            self.freeze(other, constant.why or why)

    def _bind(self, var: Var, axis: Expr) -> None:
        """From now on the variable is this; what it must not depend on, its parts must not."""
        if isinstance(axis, Fixed) and not places(axis):
            axis = replace(axis, var=var)
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
            if a.size > small:
                a, inner = self.factor(a, small, why)
                left.insert(0, inner)
            if b.size > small:
                b, inner = self.factor(b, small, why)
                right.insert(0, inner)
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
                head = self.resolve(side[0])
                side[:1] = head.terms if isinstance(head, Sum) else (head,)
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
        still = axis if isinstance(axis, Fixed) else self.freeze(axis, why)
        return still.divided(outer)

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
            group = [old.pop(0)] if old else []
            sizes = [new.pop(0)] if new else []
            while (have := math.prod(axis.size for axis in group)) != (want := math.prod(sizes)):
                if have < want:
                    group.append(old.pop(0))
                else:
                    sizes.append(new.pop(0))
            if sizes:
                found += self.split(product([self.resolve(axis) for axis in group]), sizes, why)
        return tuple(found)
