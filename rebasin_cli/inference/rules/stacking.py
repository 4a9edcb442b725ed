"""Tensors that are stacked only to be taken apart: query, key and value in one projection.

A reshape to (3, heads, dim) whose first axis is later picked by number would order all three alike. Where
the graph picks along an axis, its pieces are therefore kept as axes of their own until they are picked; an
operation that treats them as one tensor joins them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import fx

from ...graph.nodes import schema_of, values_of
from ..axes.axes import Axes, Fixed, total
from . import looking, rules

if TYPE_CHECKING:
    from .walk import Value, Walk

MOST = 64  # pieces that are told apart
SAME = ("clone", "_to_copy", "contiguous", "alias", "detach", "to")
MOVES = ("permute", "transpose", "unsqueeze", "squeeze")
RESHAPES = ("view", "reshape", "_unsafe_view", "unflatten", "_reshape_copy")


@dataclass(frozen=True)
class Stack:
    """Axes of the pieces that lie side by side along dimension `at`."""

    at: int
    pieces: tuple[Axes, ...]


def _name(node: fx.Node) -> str:
    schema = schema_of(node)
    return schema.name.removeprefix("aten::") if schema else ""


def _moved(name: str, dim: int, rank: int, arguments: Sequence[Any]) -> int | None:
    """Where a dimension is after the operation; None where it is gone or its length was read."""
    if name in SAME:
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
        name, given = _name(user), values_of(user)
        if not given or given[0] is not node:
            continue
        if name in SAME + MOVES:
            if (at := _moved(name, dim, len(shape), given)) is not None:
                found |= cuts(walk, user, at)
        elif name == "select" and given[1] % len(shape) == dim:
            index = given[2] % shape[dim]
            found |= {index, index + 1}
        elif name == "slice" and (given[1] if len(given) > 1 else 0) % len(shape) == dim:
            start, stop, step = _range(given[2:], shape[dim])
            inner = dim < len(shape) - 1  # halves of the last one are halves of each unit: rotary tables
            if step == 1 and (inner or stop - start == 1):
                found |= {start, stop}
        elif name == "index" and len(given[1]) == dim + 1 and not any(given[1][:dim]):
            if (run := looking.run_of_numbers(walk, user, shape[dim])) is not None:
                found |= {run.start, run.stop}
        elif name == "unbind" and (given[1] if len(given) > 1 else 0) % len(shape) == dim:
            found |= set(range(shape[dim]))
    return found & set(range(1, shape[dim]))


def _range(arguments: Sequence[Any], size: int) -> tuple[int, int, int]:
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
            lengths = [stop - start for start, stop in zip([0, *ends], ends, strict=False)]
            found = []
            for piece, n in zip(
                walk.units.pieces(axes[at], [n * rest for n in lengths], told), lengths, strict=True
            ):
                own = (*axes[:at], piece, *axes[at + 1 :])
                found.append(walk.units.regroup(own, (*shape[:at], n, *shape[at + 1 :]), told))
            return Stack(at, tuple(found))
    return None


def _end(old: Sequence[int], new: Sequence[int], at: int) -> int:
    """The new dimensions up to this one come from one group of old ones with `at`."""
    left = [math.prod(old[k:]) for k in range(len(old) + 1)]
    return next(end for end in range(at + 1, len(new) + 1) if math.prod(new[end:]) in left)


def apply(walk: Walk, name: str, arguments: dict[str, Any], node: fx.Node) -> Any:
    """The result of an operation on a stack: a Stack, axes, or a list of axes.

    None where there is no stack, or the operation treats the pieces as one tensor.
    """
    value = arguments.get("self")
    if value is None or not getattr(value, "pieces", ()):
        return None
    if name in SAME:
        return Stack(value.at, value.pieces)
    if name in MOVES:
        there = _moved(name, value.at, len(value.axes), node.args)
        alone = [arguments | {"self": replace(value, axes=axes, pieces=())} for axes in value.pieces]
        rule = rules.RULES[name]
        return None if there is None else Stack(there, tuple(rule(walk, piece) for piece in alone))
    if name == "slice" and arguments["dim"] % len(value.axes) == value.at:
        start, stop, step = _range(
            [arguments["start"], arguments["end"], arguments["step"]], value.shape[value.at]
        )
        return _run(value, start, stop) if step == 1 else None
    if name == "index" and [k for k, x in enumerate(arguments["indices"]) if x is not None] == [value.at]:
        run = looking.run_of_numbers(walk, node, value.shape[value.at])
        return None if run is None else _run(value, run.start, run.stop)
    if name in ("select", "unbind") and arguments["dim"] % len(value.axes) == value.at:
        if name == "select":
            return _picked(value, arguments["index"] % value.shape[value.at])
        found = [_picked(value, k) for k in range(value.shape[value.at])]
        return None if None in found else found
    return None


def _run(value: Value, start: int, stop: int) -> Axes | None:
    """The piece that lies there; None where it is part of one, or several."""
    at = 0
    for axes in value.pieces:
        if (at, at + axes[value.at].size) == (start, stop):
            return axes
        at += axes[value.at].size
    return None


def _picked(value: Value, index: int) -> Axes | None:
    start = 0
    for axes in value.pieces:
        length = axes[value.at].size
        if index < start + length:
            return (*axes[: value.at], *axes[value.at + 1 :]) if length == 1 else None
        start += length
    return None


def joined(walk: Walk, at: int, pieces: Sequence[Axes]) -> Axes:
    """The axes of the whole, whose pieces are ordered alike."""
    shapes = [(*axes[:at], Fixed(1), *axes[at + 1 :]) for axes in pieces]
    axes = rules.broadcast(walk, shapes)
    return (*axes[:at], total([walk.units.resolve(piece[at]) for piece in pieces]), *axes[at + 1 :])
