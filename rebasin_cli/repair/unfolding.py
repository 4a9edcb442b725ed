"""Linear layers and convolutions of any kind as products of matrices: their inputs in rows, their weights.

A row holds all inputs of one place of the output; groups are apart. `rows(…) @ matrix(…)` is what the
operation computes, without its bias: (groups, places, inputs) × (groups, inputs, outputs).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F


def rows(kind: str, call: Mapping[str, Any], x: Tensor, kernel: Sequence[int]) -> Tensor:
    """(groups, places, inputs): what one use of a layer reads; `call` holds its arguments by name."""
    if kind == "linear":
        return x.reshape(1, -1, x.shape[-1])
    space = len(kernel)
    if x.ndim == space + 1:  # a single sample, without an axis for the batch
        x = x[None]
    stride, dilation = (_each(call.get(name, 1), space) for name in ("stride", "dilation"))
    if "transpose" in kind:
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


def outputs(kind: str, value: Tensor, space: int, groups: int) -> Tensor:
    """(groups, places, outputs): what a layer gives, in the places of `rows`."""
    if kind == "linear":
        return value.reshape(1, -1, value.shape[-1])
    if value.ndim == space + 1:
        value = value[None]
    value = value.unflatten(1, (groups, -1)).movedim(2, -1).movedim(1, 0)
    return value.reshape(groups, -1, value.shape[-1])


def matrix(kind: str, weight: Tensor, groups: int) -> Tensor:
    """(groups, inputs, outputs): a weight by the rows that it multiplies."""
    if "transpose" in kind:
        parts = weight.unflatten(0, (groups, -1)).flip(list(range(3, weight.ndim + 1)))
        rows: Tensor = parts.movedim(2, -1).reshape(groups, -1, weight.shape[1])
        return rows
    return weight.reshape(groups, weight.shape[0] // groups, -1).mT


def weight_of(kind: str, found: Tensor, like: Tensor) -> Tensor:
    """The weight, in its own shape, that `matrix` gives; the inverse."""
    groups, _, width = found.shape
    if "transpose" in kind:
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
