"""Tensors whose parts lie side by side, each with units of its own: query, key and value in one projection,
the states of several layers in one tensor.

A reshape to (3, heads, dim) whose first axis is later picked by number would order all three alike, and so
would a stack of states of which the last is picked. Such a tensor is kept as its parts until they are picked
or brought into one axis; an operation that treats them as one tensor joins them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...graph.nodes import operation
from ..axes.axes import Axes, Fixed, total
from ..axes.stack import Stack
from . import lookup, rules
from .cuts import MOST, MOVES, moved, range_of

if TYPE_CHECKING:
    from .walk import Value, Walk


def apply(walk: Walk, rule: rules.Rule, name: str, arguments: dict[str, Any], pointwise: bool) -> Any:
    """What an operation makes of stacks: a stack, axes, or a list of these.

    None where no operand is one or becomes one, or where the operation treats the pieces as one tensor.
    """
    if name == "cat":
        return _cat(walk, arguments)
    operands = rules.tensors(arguments)
    if not any(value.stack for value in operands):
        return None
    if name in ("index", "index_select"):
        return _indexed(walk, rule, name, arguments)
    if len(operands) > 1:
        return _elementwise(walk, rule, arguments, operands) if pointwise else None
    (value,) = operands
    if value is not arguments.get("self", arguments.get("input")):
        return None
    stack: Stack = value.stack
    alone = _alone(walk, rule, arguments, value)
    known = operation(walk.node)
    if pointwise or known.kept:
        return stack.each(alone)
    if known.kind in MOVES:
        rank = len(value.axes)
        to = [moved(walk.node, at, rank) for at in stack.at]
        found = stack.each(alone)
        if found is None or None in to:
            return None
        return replace(found, at=tuple(at for at in to if at is not None))
    if known.kind == "reshape":
        return _reshape(walk, stack, walk.node.meta["val"].shape)
    if known.kind == "reduction" and isinstance(walk.node.meta["val"], torch.Tensor):
        return _reduced(walk, rule, arguments, value)
    if known.kind in ("part", "parts"):
        return _picked(walk, stack, name.removesuffix("_copy"), arguments, alone)
    return None


def _indexed(walk: Walk, rule: rules.Rule, name: str, arguments: dict[str, Any]) -> Stack | Axes | None:
    """By the numbers of a run of positions, that the code lists; along other dimensions by any numbers."""
    value: Value = arguments["self"]
    rows = (
        arguments["indices"]
        if name == "index"
        else [None] * (arguments["dim"] % len(value.axes)) + [arguments["index"]]
    )
    looked = [k for k, numbers in enumerate(rows) if numbers is not None]
    stack = value.stack
    if stack is None or len(looked) != 1 or len(rows[looked[0]].axes) != 1:
        return None
    if looked[0] not in stack.at:
        return stack.each(_alone(walk, rule, arguments, value))
    run = lookup.run_of_numbers(walk, walk.node, stack.shape[looked[0]])
    return None if run is None else _slice(walk, stack, looked[0], run.start, run.stop)


def _alone(walk: Walk, rule: rules.Rule, arguments: dict[str, Any], value: Value) -> Callable[[Axes], Any]:
    """What the operation makes of one piece."""

    def of(axes: Axes) -> Any:
        piece = replace(value, axes=axes, stack=None)
        return rule(walk, {key: piece if given is value else given for key, given in arguments.items()})

    return of


def _elementwise(walk: Walk, rule: rules.Rule, arguments: dict[str, Any], operands: Sequence[Value]) -> Any:
    """Of several stacks of the same kind, and of single numbers."""
    stacks = [value.stack for value in operands if value.stack]
    first = stacks[0]
    alike = all((stack.at, stack.lengths, stack.shape) == (first.at, first.lengths, first.shape)
                for stack in stacks)  # fmt: skip
    if not alike or any(value.stack is None and math.prod(value.shape) != 1 for value in operands):
        return None

    def piece(given: Any, k: int) -> Any:
        stack = getattr(given, "stack", None)
        return replace(given, axes=stack.pieces[k], stack=None) if stack else given

    found = [
        rule(walk, {key: piece(given, k) for key, given in arguments.items()})
        for k in range(len(first.pieces))
    ]
    return replace(first, pieces=tuple(found)) if all(isinstance(axes, tuple) for axes in found) else None


def _reduced(walk: Walk, rule: rules.Rule, arguments: dict[str, Any], value: Value) -> Stack | None:
    """Over pieces along some of the dimensions: these are ordered alike, others are not."""
    stack, rank = value.stack, len(value.axes)
    gone = rules.places(arguments.get("dim"), rank)
    for dim in gone.intersection(stack.at if stack else ()):
        found = _merged(walk, stack, dim) if stack else ()
        stack = found if isinstance(found, Stack) else None
    if stack is None:  # over all of them
        return None
    at = stack.at
    if not arguments.get("keepdim"):
        at = tuple(d - sum(other < d for other in gone) for d in at)
    made = stack.each(_alone(walk, rule, arguments, value))
    return None if made is None else replace(made, at=at)


def _cat(walk: Walk, a: dict[str, Any]) -> Stack | None:
    """Tensors side by side that have different units along other axes, and stacks along the same one."""
    values = [value for value in a["tensors"] if value.shape != (0,)]
    if len(values) < 2 or any(value.role for value in values):
        return None
    at = a["dim"] % len(values[0].axes)
    stacks = [value.stack for value in values]
    if any(stacks):
        first: Stack = next(stack for stack in stacks if stack)
        if at not in first.at and all(s and (s.at, s.lengths) == (first.at, first.lengths) for s in stacks):
            pieces = zip(*(stack.pieces for stack in stacks if stack), strict=True)
            rule = rules.RULES.kinds["join"]
            made = (rule(walk, {"tensors": [replace(values[0], axes=axes, stack=None) for axes in row],
                                "dim": at}) for row in pieces)  # fmt: skip
            return replace(first, pieces=tuple(made))
        if any(stack and stack.at != (at,) for stack in stacks):
            return None
    elif len(values) > MOST or _alike(walk, [value.axes for value in values], at):
        return None
    parts = [value.stack.pieces if value.stack else (value.axes,) for value in values]
    every = tuple(itertools.chain.from_iterable(parts))
    return Stack((at,), (tuple(axes[at].size for axes in every),), every)


def _alike(walk: Walk, rows: Sequence[Axes], at: int) -> bool:
    """Whether tensors have the same units along all axes but one; those in any order are no units."""
    first, *others = ([walk.units.resolve(axis) for axis in axes] for axes in rows)
    return not any(
        d != at and mine != theirs and not (isinstance(mine, Fixed) and isinstance(theirs, Fixed))
        for other in others
        for d, (mine, theirs) in enumerate(zip(first, other, strict=True))
        if not (walk.units.is_free(mine) or walk.units.is_free(theirs))
    )


def _picked(
    walk: Walk, stack: Stack, name: str, a: dict[str, Any], alone: Callable[[Axes], Any]
) -> Stack | Axes | list[Any] | None:
    dim, size = a["dim"] % len(stack.shape), stack.shape[a["dim"]]
    if dim not in stack.at:
        return _of_each(stack, dim, [alone(axes) for axes in stack.pieces])
    if name == "select":
        return _select(walk, stack, dim, a["index"] % size)
    if name == "unbind":
        return [_select(walk, stack, dim, k) for k in range(size)]
    if name == "slice":
        start, stop, step = range_of([a["start"], a["end"], a["step"]], size)
        return _slice(walk, stack, dim, start, stop) if step == 1 else None
    ends = [0, *itertools.accumulate(part.shape[dim] for part in walk.node.meta["val"])]
    return [_slice(walk, stack, dim, *pair) for pair in itertools.pairwise(ends)]


def _of_each(stack: Stack, dim: int, found: Sequence[Any]) -> Stack | list[Any] | None:
    """A stack whose pieces were picked from along another dimension, once or several times."""
    if any(axes is None for axes in found):
        return None
    gone = [len(axes) < len(stack.shape) for axes in _plain(found)]
    at = tuple(d - (gone[0] and d > dim) for d in stack.at)
    if isinstance(found[0], list):
        return [replace(stack, at=at, pieces=tuple(row)) for row in zip(*found, strict=True)]
    return replace(stack, at=at, pieces=tuple(found))


def _plain(found: Sequence[Any]) -> Iterator[Axes]:
    for axes in found:
        yield from axes if isinstance(axes, list) else [axes]


def _slice(walk: Walk, stack: Stack, dim: int, start: int, stop: int) -> Stack | Axes:
    """A run of positions along one of the dimensions of pieces, each cut where it begins or ends."""
    place, starts = stack.at.index(dim), stack.starts(dim)
    told = walk.why("it is cut into pieces")
    kept: dict[int, tuple[int, int]] = {}  # number of the row of pieces → what of it
    for k, (first, last) in enumerate(itertools.pairwise(starts)):
        if max(first, start) < min(last, stop):
            kept[k] = max(first, start) - first, min(last, stop) - first
    pieces = []
    for numbers, axes in zip(stack.numbers(), stack.pieces, strict=True):
        if numbers[place] in kept:
            begin, end = kept[numbers[place]]
            cut = [begin, end - begin, axes[dim].size - end]
            part = walk.units.pieces(axes[dim], cut, told)[1]
            pieces.append((*axes[:dim], part, *axes[dim + 1 :]))
    lengths = tuple(end - begin for begin, end in kept.values())
    if not pieces:
        return tuple(Fixed(0 if d == dim else n) for d, n in enumerate(stack.shape))
    return stack.along(dim, lengths, pieces)


def _select(walk: Walk, stack: Stack, dim: int, index: int) -> Stack | Axes:
    one = _slice(walk, stack, dim, index, index + 1)

    def without(axes: Axes) -> Axes:
        return (*axes[:dim], *axes[dim + 1 :])

    if not isinstance(one, Stack):
        return without(one)
    at = tuple(d - (d > dim) for d in one.at)
    return replace(one, at=at, pieces=tuple(map(without, one.pieces)))


def _reshape(walk: Walk, stack: Stack, shape: Sequence[int]) -> Stack | None:
    """Dimensions of pieces that lead what they are brought together with, or are split, stay such."""
    if 0 in shape:
        return None
    stack = stack.in_order()
    at: list[int] = []
    lengths: list[tuple[int, ...]] = []
    new: list[list[int]] = [[] for _ in stack.pieces]  # shapes of the pieces
    for old, fresh in _groups(stack.shape, shape):
        places = [k for k, dim in enumerate(stack.at) if dim in old]
        offset = len(new[0])
        if not places:
            for row in new:
                row += fresh
            continue
        inner = math.prod(stack.shape[d] for d in old if d > stack.at[places[-1]])
        led = [d for d in old if stack.shape[d] > 1][: len(places)] == [stack.at[k] for k in places]
        if not led or any(set(stack.lengths[k]) != {1} for k in places[:-1]):
            return None
        rows = math.prod(len(stack.lengths[k]) for k in places[:-1])
        runs = [n * inner for n in stack.lengths[places[-1]] * rows]  # one after another
        if (found := _divided(runs, fresh)) is None:
            return None
        dims, parts, shapes = found
        at += [offset + d for d in dims]
        lengths += parts
        numbers = itertools.product(*(range(len(stack.lengths[k])) for k in places))
        shape_of = dict(zip(numbers, shapes, strict=True))
        for own, row in zip(stack.numbers(), new, strict=True):
            row += shape_of[tuple(own[k] for k in places)]
    told = walk.why(f"its {'×'.join(map(str, stack.shape))} become {'×'.join(map(str, shape))}")
    rows_ = zip(stack.pieces, new, strict=True)
    return Stack(tuple(at), tuple(lengths), tuple(walk.units.regroup(axes, row, told) for axes, row in rows_))


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Old dimensions, by number, and the lengths of the new ones that have as many entries."""
    i = j = 0
    while i < len(old) or j < len(new):
        ours, theirs = ([i], [new[j]]) if i < len(old) and j < len(new) else ([], [])
        if not ours:  # dimensions of one are left
            yield list(range(i, len(old))), list(new[j:])
            return
        while (have := math.prod(old[k] for k in ours)) != (want := math.prod(theirs)):
            if have < want:
                ours.append(ours[-1] + 1)
            else:
                theirs.append(new[j + len(theirs)])
        i, j = ours[-1] + 1, j + len(theirs)
        yield ours, theirs


def _divided(
    runs: Sequence[int], shape: Sequence[int]
) -> tuple[list[int], list[tuple[int, ...]], list[tuple[int, ...]]] | None:
    """Runs of entries in these dimensions: in which they lie side by side, their lengths there, and shapes.

    None where they do not fill rows.
    """
    first, *rest = shape
    row = math.prod(rest)
    if all(run % row == 0 for run in runs):
        own = tuple(run // row for run in runs)
        return [0], [own], [(n, *rest) for n in own]
    lines, line = [], []
    for run in runs:
        line.append(run)
        if sum(line) >= row:
            lines.append(line)
            line = []
    if line or any(line != lines[0] or sum(line) != row for line in lines):
        return None
    if (inner := _divided(lines[0], rest)) is None:
        return None
    dims, lengths, shapes = inner
    return (
        [0, *(d + 1 for d in dims)],
        [(1,) * first, *lengths],
        [(1, *shape) for shape in shapes] * first,
    )


def joined(walk: Walk, stack: Stack) -> Axes:
    """The axes of the whole, whose pieces are ordered alike."""
    found: Stack | Axes = stack
    for dim in stack.at:
        found = _merged(walk, found, dim) if isinstance(found, Stack) else found
    return found if isinstance(found, tuple) else ()


def _merged(walk: Walk, stack: Stack, dim: int) -> Stack | Axes:
    """The pieces along one of its dimensions as one, ordered alike along all others."""
    place = stack.at.index(dim)
    rows: dict[tuple[int, ...], list[Axes]] = {}
    for number, axes in zip(stack.numbers(), stack.pieces, strict=True):
        rows.setdefault((*number[:place], *number[place + 1 :]), []).append(axes)
    pieces = []
    for row in rows.values():
        whole = list(rules.broadcast(walk, [(*axes[:dim], Fixed(1), *axes[dim + 1 :]) for axes in row]))
        whole[dim] = total([walk.units.resolve(axes[dim]) for axes in row])
        pieces.append(tuple(whole))
    return stack.along(dim, (stack.shape[dim],), pieces)
