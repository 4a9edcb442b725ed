"""Variables, what they have become, and what their orders depend on.

The order of a variable may depend on where one is along others, its *parents*: within each head a
permutation of its own. Splitting an axis of unknown order into (heads, dim) makes `dim` one that depends on
`heads`. What tells the heads apart no longer, because it lost that axis or has it elsewhere, takes the
parent away, and the heads have one order in common. Parents are kept as constraints, the sets that they may
be taken from, and are read off when asked for: what their variables have become by then counts. Blocks that
stay where they are tell orders apart as those do that move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .axes import Expr, Fixed, Product, Sum, Var, every, places, product, total, variables

Parents = frozenset[Var]
NONE: Parents = frozenset()


class Orders:
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
        return Fixed(size) if size <= 1 else self.variable(size, limits)

    def variable(self, size: int, limits: Iterable[Parents] = (NONE,)) -> Var:
        """Several units in an order of their own, whose parents are in each of `limits`."""
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
        if not limits or not all(limits) or var.id in _asked or self.stays(var):
            return NONE
        found = frozenset.intersection(*map(self._now, limits))
        asked = _asked | {var.id}
        while open_ := {p for p in found if p == var or not self.parents(p, asked) <= found}:
            found -= open_
        return found

    def stays(self, var: Var) -> bool:
        """Whether it is a constant by now, which tells blocks apart."""
        return isinstance(self.resolve(var), Fixed)

    def _now(self, limit: Parents) -> Parents:
        """What these variables have become; one cut into segments tells nothing apart any longer."""
        return frozenset(var for parent in limit for var in places(self.resolve(parent)))

    def _within(self, axis: Expr, scope: Parents = NONE) -> Iterator[tuple[Var, Parents]]:
        """Every variable of a resolved axis, with those that its position on this axis determines."""
        if isinstance(axis, Var):
            yield axis, scope
        elif isinstance(axis, Product):
            for k, factor in enumerate(axis.factors):
                others = (*axis.factors[:k], *axis.factors[k + 1 :])
                yield from self._within(factor, scope.union(*map(places, others)))
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
        all_ = [var for axis in resolved for var in every(axis)]
        found = {var: k for k, axis in enumerate(resolved) for var in places(axis) if all_.count(var) == 1}
        for rows, names in self.sorted_by:  # where one is along sorted rows tells what they are sorted by
            here = self.resolve(rows)
            if isinstance(here, Var) and (k := found.get(here)) is not None:
                found |= {var: k for var in places(self.resolve(names)) if var not in all_}
        return found

    def tells(self, axis: Expr, names: Expr) -> bool:
        """Whether rows along this axis are sorted by these units."""
        here, by = self.resolve(axis), self.resolve(names)
        return any(self.resolve(a) == here and self.resolve(b) == by for a, b in self.sorted_by)

    def sorts(self, axis: Expr) -> bool:
        """Whether these are rows that are sorted by something."""
        here = self.resolve(axis)
        return any(self.resolve(rows) == here for rows, _ in self.sorted_by)

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
