"""What a spec can say of what was found; the rest is given up, with a reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from ..axes.axes import Axes, Expr, Fixed, Product, Sum, Var, factors, parts, places, variables
from ..axes.orders import NONE, Parents
from ..axes.units import Units
from .walk import Walk

NO_EVIDENCE = "only running statistics have these units, which are no evidence"
ALONE = "no other axis has these units, perhaps because the example inputs leave them without effect"


def drop_unwritable(walk: Walk) -> None:
    """Freeze what nothing could be matched by, and order blocks alike that the notation cannot tell apart."""
    resolve = walk.units.resolve
    evidence = {
        var
        for name, axes in walk.tensors.items()
        if not name.endswith(("running_mean", "running_var"))
        for axis in axes
        for var in variables(resolve(axis))
    }
    for axes in walk.tensors.values():
        for var in {var for axis in axes for var in variables(resolve(axis))} - evidence:
            walk.freeze(var, NO_EVIDENCE)
    once = {id(axes): axes for axes in walk.tensors.values()}  # tied tensors count as one
    seen = Counter(var for axes in once.values() for axis in axes for var in variables(resolve(axis)))
    for var, count in seen.items():
        if count == 1:
            walk.freeze(var, ALONE)
    while wrong := _misplaced(walk.units, walk.tensors):
        for var, parent in wrong.items():
            could, _ = walk.merged.get(var, (_blocks(walk.units, var), 1))
            walk.units.limit(var, frozenset({parent}) if parent else NONE)
            walk.merged[var] = could, _blocks(walk.units, var)


def _blocks(units: Units, var: Var) -> int:
    """How many orders of its own it has."""
    return math.prod(parent.size for parent in units.parents(var))


def _misplaced(units: Units, tensors: Mapping[str, Axes]) -> dict[Var, Var | None]:
    """Variables whose parents cannot be written, each with one that might be.

    A starred word's parent is the word without a star before it on its axis, or else one that stands on
    another axis of the same tensor (`specs/README.md`); then a number before it is one of copies. Parents
    that stay are written as the number that its axis begins with.
    """
    wrong: dict[Var, Var | None] = {}
    for found in tensors.values():
        axes = [units.resolve(axis) for axis in found]
        every = Counter(var for axis in axes for var in variables(axis))
        for axis in axes:
            for var, before in _before(units, axis):
                parents = units.parents(var)
                moving = frozenset(parent for parent in parents if not units.stays(parent))
                if parents and not moving:
                    if not _numbered(parents, before):
                        wrong[var] = None
                    continue
                if moving < parents and len(moving) == 1:
                    wrong.setdefault(var, *moving)
                    continue
                parents = moving
                if len(parents) > 1:
                    simple = [p for p in parents if not units.parents(p)]
                    wrong.setdefault(var, before if before in simple else min(simple, key=lambda p: p.id))
                elif parents and not isinstance(before, Var):
                    (parent,) = parents
                    others = [other for other in axes if other is not axis]
                    if every[parent] != 1 or not any(parent in factors(other) for other in others):
                        wrong[var] = None
                elif parents and before not in parents:
                    wrong[var] = None
    return wrong


def _numbered(parents: Parents, before: Expr | None) -> bool:
    """Whether the constant that leads a product is the blocks, which stay themselves: `(4 d*)`."""
    return (
        isinstance(before, Fixed)
        and set(places(before)) == parents
        and before.size == math.prod(parent.size for parent in parents)
    )


def _before(units: Units, axis: Expr, before: Expr | None = None) -> Iterator[tuple[Var, Expr | None]]:
    """Every variable, with the one that its star would refer to, or the constant that leads its product."""
    if isinstance(axis, Var):
        yield axis, before
    if isinstance(axis, Product):
        for k, factor in enumerate(axis.factors):
            yield from _before(units, factor, before)
            if isinstance(factor, Var) and not units.parents(factor):
                before = factor
            elif isinstance(factor, Fixed) and k == 0 and before is None:
                before = factor
    elif isinstance(axis, Sum):
        for term in axis.terms:
            yield from _before(units, term, before)


def within(units: Units, tensors: Mapping[str, Axes]) -> dict[Var, Var]:
    """What starred words lie within, where no axis says it or one has a number of copies before them."""
    said: dict[Var, set[Expr | None]] = {}
    for found in tensors.values():
        for axis in found:
            for var, before in _before(units, units.resolve(axis)):
                said.setdefault(var, set()).add(before)
    outer = {var: next(iter(parents)) for var in said if (parents := units.parents(var))}
    outer = {var: parent for var, parent in outer.items() if not units.stays(parent)}
    return {
        var: parent
        for var, parent in outer.items()
        if parent not in said[var] or any(isinstance(before, Fixed) for before in said[var])
    }


def sizes(units: Units, tensors: Mapping[str, Axes]) -> dict[Var, int]:
    """Variables whose sizes no axis tells: one of two unknown words, for instance, has many solutions."""
    axes = [units.resolve(axis) for found in tensors.values() for axis in found]
    known = {axis for axis in axes if isinstance(axis, Var)}
    left = [axis for axis in axes if parts(axis)]
    told: dict[Var, int] = {}
    while True:
        before = len(known)
        for axis in left:
            unknown = {var for var in variables(axis) if var not in known}
            if len(unknown) == 1 and _solvable(axis, *unknown):
                known |= unknown
        if len(known) == before:
            open_ = [var for axis in left for var in variables(axis) if var not in known]
            if not open_:
                return told
            told[open_[0]] = open_[0].size
            known.add(open_[0])


def _solvable(axis: Expr, var: Var) -> bool:
    """Whether the axis's length tells this size: written once, or as one run (`u + u + 8` is `(2 u) + 8`)."""
    if isinstance(axis, Sum):
        terms = [k for k, term in enumerate(axis.terms) if var in variables(term)]
        one_run = terms == list(range(terms[0], terms[-1] + 1)) and len({axis.terms[k] for k in terms}) == 1
        return one_run and _solvable(axis.terms[terms[0]], var)
    inside = [part for part in parts(axis) if var in variables(part)]
    return not parts(axis) or (len(inside) == 1 and _solvable(inside[0], var))
