"""Linear layers and convolutions of any kind as products of matrices: their inputs in rows, their weights.

What multiplies every channel by a number of its own in the end, such as LayerNorm, is a product of one number
for each channel.

A row holds all inputs of one place of the output; groups are apart. `rows(…) @ matrix(…)` is what the
operation computes, without its bias: (groups, places, inputs) × (groups, inputs, outputs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx
from torch.nn import functional as F

from ..graph.nodes import arguments, name_of, operation


def rows(node: fx.Node, x: Tensor, kernel: Sequence[int]) -> Tensor:
    """(groups, places, inputs): what one use of a layer reads; its weight has this `kernel`."""
    if not kernel:  # a linear layer
        return x.reshape(1, -1, x.shape[-1])
    space, call = len(kernel), arguments(node)
    if x.ndim == space + 1:  # a single sample, without an axis for the batch
        x = x[None]
    stride, dilation = (_each(call.get(name, 1), space) for name in ("stride", "dilation"))
    if operation(node).transposed:
        x = _spread(x, stride)
        more = _each(call.get("output_padding", 0), space)
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        padding = [
            (r - p, r - p + m) for r, p, m in zip(reach, _each(call["padding"], space), more, strict=True)
        ]
        stride = [1] * space
    else:
        padding = _padding(call.get("padding", 0), dilation, kernel)
    x = F.pad(x, [side for pair in reversed(padding) for side in pair])
    for axis, (step, apart, size) in enumerate(zip(stride, dilation, kernel, strict=True), start=2):
        x = x.unfold(axis, apart * (size - 1) + 1, step)[..., ::apart]  # a last axis for the kernel
    groups = call.get("groups", 1)
    x = x.unflatten(1, (groups, -1))  # batch, groups, channels, *places, *kernel
    places = range(3, 3 + space)
    x = x.permute(1, 0, *places, 2, *range(3 + space, 3 + 2 * space))
    return x.reshape(groups, -1, math.prod(x.shape[2 + space :]))


def outputs(value: Tensor, space: int, groups: int) -> Tensor:
    """(groups, places, outputs): what a layer gives, in the places of `rows`."""
    if not space:
        return value.reshape(1, -1, value.shape[-1])
    if value.ndim == space + 1:
        value = value[None]
    value = value.unflatten(1, (groups, -1)).movedim(2, -1).movedim(1, 0)
    return value.reshape(groups, -1, value.shape[-1])


def matrix(weight: Tensor, groups: int, transposed: bool) -> Tensor:
    """(groups, inputs, outputs): a weight by the rows that it multiplies."""
    if transposed:
        parts = weight.unflatten(0, (groups, -1)).flip(list(range(3, weight.ndim + 1)))
        rows: Tensor = parts.movedim(2, -1).reshape(groups, -1, weight.shape[1])
        return rows
    return weight.reshape(groups, weight.shape[0] // groups, -1).mT


def weight_of(found: Tensor, like: Tensor, transposed: bool) -> Tensor:
    """The weight, in its own shape, that `matrix` gives; the inverse."""
    groups, _, width = found.shape
    if transposed:
        parts = found.reshape(groups, like.shape[0] // groups, *like.shape[2:], width).movedim(-1, 2)
        return parts.flip(list(range(3, like.ndim + 1))).reshape(like.shape)
    return found.mT.reshape(like.shape)


def _each(value: Any, space: int) -> list[int]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    return values * space if len(values) == 1 else values


def _padding(padding: Any, dilation: Sequence[int], kernel: Sequence[int]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":  # what is odd goes to the end
        both = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(total // 2, total - total // 2) for total in both]
    return [(side, side) for side in _each(padding, len(kernel))]


def _spread(x: Tensor, stride: Sequence[int]) -> Tensor:
    """The places set apart by `stride`, zeros between them."""
    if all(step == 1 for step in stride):
        return x
    shape = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], stride, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *shape)
    places: tuple[Any, ...] = (..., *(slice(None, None, step) for step in stride))
    wide[places] = x
    return wide


def scales(node: fx.Node) -> bool:
    """Whether it may multiply every channel by a number of its own in the end: RMSNorm is a product."""
    plain = isinstance(node.meta.get("val"), Tensor)
    return name_of(node) == "mul" or (operation(node).kind in ("layer_norm", "group_norm") and plain)


def factors(node: fx.Node) -> tuple[Any, Any]:
    """Of a product the parameter, and the values that it multiplies; None where there are no two such."""
    both = [arguments(node)[name] for name in ("self", "other")]
    if not all(isinstance(one, fx.Node) for one in both):
        return None, None
    return tuple(sorted(both, key=lambda one: one.op != "placeholder"))


def normalised(node: fx.Node, value: Tensor) -> Tensor:
    """(channels, rows, 1): what an operation that `scales` multiplies, in float64."""
    if not operation(node).norm:
        return channels(node, value.double())
    norm: Any = node.target
    plain = {"input": value.double(), "weight": None, "bias": None}
    return channels(node, norm(**arguments(node) | plain))


def channels(node: fx.Node, value: Tensor) -> Tensor:
    """(channels, rows, 1): the values of an operation that `scales`, or of what it reads."""
    if operation(node).kind == "group_norm":
        return value.movedim(1, 0).flatten(1)[..., None]
    inner = len(arguments(node).get("normalized_shape", (0,)))
    return value.flatten(value.ndim - inner).flatten(0, -2).mT[..., None]
