"""Where a stack begins: a reshape to dimensions that are later picked from by number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from ...graph.nodes import name_of, operation, values_of
from ..axes.stack import Stack
from . import lookup

if TYPE_CHECKING:
    from .walk import Value, Walk

MOST = 64  # pieces that are told apart
MOVES = ("permute", "axis")  # kinds of operations


def moved(node: fx.Node, dim: int, rank: int) -> int | None:
    """Where a dimension is after the operation; None where it is gone or its length was read."""
    name, arguments = name_of(node).removesuffix("_copy"), values_of(node)
    if operation(node).kept:
        return dim
    if name == "permute":
        return [d % rank for d in arguments[1]].index(dim)
    if name == "transpose":
        a, b = (int(d) % rank for d in arguments[1:3])
        return {a: b, b: a}.get(dim, dim)
    if name == "unsqueeze":
        return dim + int(arguments[1] % (rank + 1) <= dim)
    if name == "squeeze" and len(arguments) > 1:
        dims = arguments[1] if isinstance(arguments[1], (list, tuple)) else [arguments[1]]
        gone = [d % rank for d in dims]
        return None if dim in gone else dim - sum(d < dim for d in gone)
    return None


def cuts(walk: Walk, node: fx.Node, dim: int) -> set[int]:
    """Where the graph cuts this dimension of a node's result, itself or after moving it about."""
    shape = node.meta["val"].shape
    found: set[int] = set()
    for user in node.users:
        name, given, known = name_of(user), values_of(user), operation(user)
        if not given or given[0] is not node:
            continue
        if known.kept or known.kind in MOVES:
            if (at := moved(user, dim, len(shape))) is not None:
                found |= cuts(walk, user, at)
        elif name == "select" and given[1] % len(shape) == dim:
            index = given[2] % shape[dim]
            found |= {index, index + 1}
        elif name == "slice" and (given[1] if len(given) > 1 else 0) % len(shape) == dim:
            start, stop, step = range_of(given[2:], shape[dim])
            inner = dim < len(shape) - 1  # halves of the last one are halves of each unit: rotary tables
            if step == 1 and (inner or stop - start == 1):
                found |= {start, stop}
        elif name == "index" and len(given[1]) == dim + 1 and not any(given[1][:dim]):
            if (run := lookup.run_of_numbers(walk, user, shape[dim])) is not None:
                found |= {run.start, run.stop}
        elif name == "unbind" and (given[1] if len(given) > 1 else 0) % len(shape) == dim:
            found |= set(range(shape[dim]))
    return found & set(range(1, shape[dim]))


def range_of(arguments: Sequence[Any], size: int) -> tuple[int, int, int]:
    """Start, stop and step of a slice of so many units."""
    start, stop, step = [*arguments, None, None, None][:3]
    return slice(start, stop, step).indices(size)


def reshaped(walk: Walk, value: Value, shape: Sequence[int]) -> Stack | None:
    """The result of a reshape, along the first dimension that is picked from later; None where none is."""
    for at in range(len(shape)):
        if 1 < shape[at] <= MOST and (points := cuts(walk, walk.node, at)):
            end = _end(value.shape, shape, at)
            rest = math.prod(shape[at + 1 : end])
            told = walk.why("it is picked from by number")
            whole = (*shape[:at], shape[at] * rest, *shape[end:])
            axes = walk.units.regroup(value.axes, whole, told)
            ends = [*sorted(points), shape[at]]
            lengths = tuple(stop - start for start, stop in zip([0, *ends], ends, strict=False))
            found = []
            for piece, n in zip(
                walk.units.pieces(axes[at], [n * rest for n in lengths], told), lengths, strict=True
            ):
                own = (*axes[:at], piece, *axes[at + 1 :])
                found.append(walk.units.regroup(own, (*shape[:at], n, *shape[at + 1 :]), told))
            return Stack((at,), (lengths,), tuple(found))
    return None


def _end(old: Sequence[int], new: Sequence[int], at: int) -> int:
    """The new dimensions up to this one come from one group of old ones with `at`."""
    left = [math.prod(old[k:]) for k in range(len(old) + 1)]
    return next(end for end in range(at + 1, len(new) + 1) if math.prod(new[end:]) in left)
