"""What rules about operations share: the table of them, and the axes of what operations combine.

Most are of a kind of operations (`graph/operations.py`), and serve all that have no rule by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ...graph.operations import Kind, operation_of
from ..axes.axes import Axes, Expr, Fixed, variables
from ..axes.orders import NONE

if TYPE_CHECKING:
    from .walk import Value, Walk

Rule = Callable[..., Any]  # of a walk, and of an operation's arguments by their names
R = TypeVar("R", bound=Rule)


class Rules(dict[str, Rule]):
    """Rules by the names of aten operations, and by kinds, for names without one of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[str, Rule] = {}

    def rule(self, *names: str) -> Callable[[R], R]:
        """Register a rule for these operations."""

        def register(function: R) -> R:
            self.update(dict.fromkeys(names, function))
            return function

        return register

    def kind(self, *kinds: Kind) -> Callable[[R], R]:
        """Register a rule for all operations of these kinds."""

        def register(function: R) -> R:
            self.kinds.update(dict.fromkeys(kinds, function))
            return function

        return register

    def of(self, target: Any, name: str) -> Rule | None:
        """What tells the axes of an operation's result; None where nothing does."""
        return self.get(name) or self.kinds.get(operation_of(target, name).kind)


RULES = Rules()
rule, kind = RULES.rule, RULES.kind


def tensors(arguments: dict[str, Any]) -> list[Value]:
    found = []
    for value in arguments.values():
        found += [v for v in (value if isinstance(value, (list, tuple)) else [value]) if hasattr(v, "axes")]
    return found


def places(dims: Any, rank: int) -> set[int]:
    """Dimensions as a set of non-negative numbers; none given means all."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return set(range(rank))
    return {d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims])} if rank else set()


def broadcast(walk: Walk, shapes: list[Axes]) -> Axes:
    """Axes from the right; those of one length are one, those of length 1 repeat.

    Where an order depends on another axis, all must have that axis at the same place.
    """
    units, rank = walk.units, max(map(len, shapes), default=0)
    rows = [(Fixed(1),) * (rank - len(axes)) + axes for axes in shapes]
    result: list[Expr] = [Fixed(1)] * rank
    depends = {k: max(len(units.external(axes[k])) for axes in rows) for k in range(rank)}
    for k in sorted(depends, key=depends.__getitem__):
        wide = [axes for axes in rows if axes[k].size != 1] or rows[:1]
        told = [axes for axes in wide if not units.is_free(axes[k])] or wide[:1]
        result[k] = told[0][k]
        for axes in told[1:]:
            result[k] = walk.unify(result[k], axes[k], units.aligned(told, k) if depends[k] else NONE)
    return tuple(result)


def unite(walk: Walk, shapes: list[Axes]) -> Axes:
    """As `broadcast`, where each of them is what it is: one in any order is from now on in the others'."""
    found = broadcast(walk, shapes)
    for axes in shapes:
        row = (Fixed(1),) * (len(found) - len(axes)) + axes
        for k, (own, axis) in enumerate(zip(row, found, strict=True)):
            if own.size == axis.size:
                walk.unify(axis, own, walk.units.aligned([row, found], k))
    return found


def dropped(walk: Walk, axes: Axes) -> None:
    """Chance tells equal entries apart: all who read them, as a mask for two layers, have one order."""
    for var in (var for axis in axes for var in variables(walk.units.resolve(axis))):
        if walk.units.is_free(var):
            walk.units.unify(var, walk.units.variable(var.size), "")
