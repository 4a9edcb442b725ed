"""Rules for rows that are looked up, or put, by number: the axes looked up in stay, the others go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ...graph.nodes import operand, schema_of
from ..axes.axes import Axes, Fixed
from .rules import broadcast, rule, unite

if TYPE_CHECKING:
    from .walk import Value, Walk

MASKS = (torch.bool, torch.uint8)


@rule("index", "_unsafe_index", "index_select", "embedding")
def index(walk: Walk, a: dict[str, Any]) -> Axes | None:
    """Rows looked up by number: the axes looked up in stay, the others go through."""
    if walk.operation == "embedding":
        value, lookups = a["weight"], [a["indices"]]
    elif walk.operation == "index_select":
        value, lookups = a["self"], [None] * (a["dim"] % len(a["self"].axes)) + [a["index"]]
    else:
        value, lookups = a["self"], a["indices"]
    if any(found is not None and found.dtype in MASKS for found in lookups):
        return _masked(walk, value.axes, lookups, walk.node.meta["val"].shape)
    looked = [d for d, lookup in enumerate(lookups) if lookup is not None]
    if len(looked) == 1 and (run := run_of_numbers(walk, walk.node, value.shape[looked[0]])) is not None:
        at = looked[0]
        cut = [run.start, len(run), value.shape[at] - run.stop]
        part = walk.units.pieces(value.axes[at], cut, walk.why("it is cut into pieces"))[1]
        return (*value.axes[:at], part, *value.axes[at + 1 :])
    return _taken(walk, value.axes, {d: lookups[d].axes for d in looked})


def _taken(walk: Walk, axes: Axes, numbers: Mapping[int, Axes]) -> Axes:
    """What is looked up along these dimensions by numbers with these axes: such dimensions stay."""
    for d in numbers:
        walk.freeze(axes[d], "it is looked up by number")
    found, looked = broadcast(walk, [*numbers.values()]), [*numbers]
    rest = [axis for d, axis in enumerate(axes) if d not in looked]
    at = looked[0] if looked == list(range(looked[0], looked[-1] + 1)) else 0
    return (*rest[:at], *found, *rest[at:])


def _masked(walk: Walk, axes: Axes, lookups: Sequence[Value | None], shape: Sequence[int]) -> Axes | None:
    """Rows of this shape where a mask is true, one after another: they stay, and so does the mask."""
    at, masks = len(lookups) - 1, [found for found in lookups if found is not None]
    if len(masks) != 1 or lookups[-1] is None:
        return None
    rank = len(masks[0].axes)
    walk.freeze((*axes[at : at + rank], *masks[0].axes), "a mask picks some of it")
    return (*axes[:at], Fixed(shape[at]), *axes[at + rank :])


@rule("_pack_padded_sequence")
def packed(walk: Walk, a: dict[str, Any]) -> list[Axes]:
    """Sequences of several lengths as rows, step by step."""
    walk.freeze((*a["input"].axes[:2], *a["lengths"].axes), "sequences are packed by their lengths")
    rows, lengths = walk.node.meta["val"]
    return [(Fixed(rows.shape[0]), *a["input"].axes[2:]), (Fixed(lengths.shape[0]),)]


@rule("_pad_packed_sequence")
def padded(walk: Walk, a: dict[str, Any]) -> list[Axes]:
    """The way back."""
    walk.freeze((a["data"].axes[0], *a["batch_sizes"].axes), "sequences are packed by their lengths")
    rows, lengths = walk.node.meta["val"]
    return [(*map(Fixed, rows.shape[:2]), *a["data"].axes[1:]), (Fixed(lengths.shape[0]),)]


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(walk: Walk, a: dict[str, Any]) -> list[Axes] | None:
    """Sums, means or maxima of rows looked up by number."""
    rows, columns = a["weight"].axes
    walk.freeze(rows, "it is looked up by number")
    if a["per_sample_weights"] is not None:
        walk.freeze(a["per_sample_weights"].axes, "")
    found, *told = walk.node.meta["val"]
    return [(Fixed(found.shape[0]), columns), *(tuple(map(Fixed, tensor.shape)) for tensor in told)]


def run_of_numbers(walk: Walk, node: fx.Node, size: int) -> range | None:
    """The numbers looked up, where the code lists those of a piece: `x[:, [4, 5]]`."""
    found = [read for read in node.all_input_nodes if not read.meta["val"].is_floating_point()]
    if len(found) != 1:
        return None
    source = found[0]
    while source.op == "call_function":
        schema = schema_of(source)
        if schema is None or schema.name not in ("aten::clone", "aten::lift_fresh_copy", "aten::alias"):
            return None
        source = operand(source)
    numbers = walk.constants.get(source)
    if numbers is None or numbers.ndim != 1 or not len(numbers):
        return None
    first = int(numbers[0]) % size
    run = range(first, first + len(numbers))
    return run if [int(n) % size for n in numbers] == list(run) else None


@rule("index_put")
def index_put(walk: Walk, a: dict[str, Any]) -> Axes | None:
    """Rows put, or added, where numbers or a mask say: these stay, and the numbers go with the rows.

    Of one number put where a mask is true, no order matters: `x[x < 0] = 0`.
    """
    axes: Axes = a["self"].axes
    numbers = {d: lookup.axes for d, lookup in enumerate(a["indices"]) if lookup is not None}
    if any(lookup is not None and lookup.dtype in MASKS for lookup in a["indices"]):
        masks = [lookup for lookup in a["indices"] if lookup is not None]
        if len(masks) == 1 and all(axis.size == 1 for axis in a["values"].axes):  # as `torch.where` has it
            at = len(a["indices"]) - 1
            for own, mask in zip(axes[at:], masks[0].axes, strict=False):
                walk.unify(own, mask)
            return axes
        kept = len(axes) - len(a["indices"][-1].axes) + 1
        rows = (Fixed(1),) * (kept - len(a["values"].axes)) + a["values"].axes
        put = _masked(walk, axes, a["indices"], [axis.size for axis in rows])
        return None if put is None or unite(walk, [put, rows]) is None else axes
    if not a["accumulate"]:  # of two that go to one place the last stays
        for each in numbers.values():
            walk.freeze(each, "it is looked up by number")
    unite(walk, [_taken(walk, axes, numbers), a["values"].axes])
    return axes


@rule("index_add", "index_copy")
def index_add(walk: Walk, a: dict[str, Any]) -> Axes:
    """Rows added, or written, where numbers say: these stay, and the numbers with the rows."""
    axes: Axes = a["self"].axes
    source, at = a["source"].axes, a["dim"] % len(axes)
    walk.freeze((axes[at], source[at], *a["index"].axes), "it is looked up by number")
    for d, (own, new) in enumerate(zip(axes, source, strict=True)):
        if d != at:
            walk.unify(own, new)
    return axes


@rule("gather")
def gather(walk: Walk, a: dict[str, Any]) -> Axes | None:
    """Along one dimension entries are looked up by number; along the others, each by its own number."""
    value: Axes = a["self"].axes
    index: Axes = a["index"].axes
    if len(value) != len(index):
        return None
    for d, (own, number) in enumerate(zip(value, index, strict=True)):
        if d == a["dim"] % len(value):
            walk.freeze(own, "it is looked up by number")
        elif own.size == number.size:
            walk.unify(own, number)
        else:  # only the first few are read
            walk.freeze((own, number), "gather reads a part of it")
    return index
