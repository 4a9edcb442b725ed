"""How far outputs differ, each number relative to the size of numbers of its own kind."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

MARGIN = 1000  # how much larger than rounding a difference has to be
FAR = 100  # times as large as a channel: what is larger in other channels does not tell how large that one is
MASK = 1e30  # what stands for minus infinity where logits are masked is above it


def difference(
    before: Sequence[torch.Tensor],
    after: Sequence[torch.Tensor],
    sizes: Sequence[torch.Tensor] | None = None,
) -> float:
    """Largest difference of two numbers, each relative to its size: `own_sizes` of `before`, or those given.

    Infinite where shapes differ, and where one is infinite, or NaN, and the other not.
    """
    return max(differences(before, after, sizes), default=0.0)


def differences(
    before: Sequence[torch.Tensor],
    after: Sequence[torch.Tensor],
    sizes: Sequence[torch.Tensor] | None = None,
) -> list[float]:
    """As `difference`, of every output."""
    if not same_shapes([before, after]):
        return [math.inf] * max(1, len(before))
    return list(map(_difference, before, after, sizes or own_sizes(before)))


def _difference(x: torch.Tensor, y: torch.Tensor, size: torch.Tensor) -> float:
    if not x.numel():
        return 0.0
    value = ((x - y).abs() / size).max().item()
    if math.isnan(value):  # infinities
        there = x.isfinite()
        same = torch.equal(x[~there], y[~there]) and y[there].isfinite().all()
        return _difference(x[there], y[there], size.expand_as(x)[there]) if same else math.inf
    return value


def own_sizes(
    outputs: Sequence[torch.Tensor], rounded: Sequence[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """What differences of numbers are relative to, so that large channels hide no small one; they broadcast.

    It is the largest number of an output; `FAR` times the largest of a number's own channel where that is
    less. A channel is a place on any axis but the first, the batch's. `rounded` are the outputs that rounding
    alone has changed: what is left of larger numbers after they cancelled is as large as they were. Numbers
    above `MASK` are as large as they are, and make no other large.
    """
    return list(map(_own_size, outputs, rounded or outputs))


def _own_size(tensor: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    finite = torch.where(tensor.isfinite(), tensor, 0.0).abs()
    if not tensor.numel():
        return finite
    moved = torch.nan_to_num(rounded - tensor, nan=0.0, posinf=0.0, neginf=0.0).abs()
    noise = moved / torch.finfo(tensor.dtype).eps
    masks, whole = finite >= MASK, finite
    finite = torch.where(masks, 0.0, finite)
    size = finite.amax()
    for axis in range(1, tensor.ndim):
        others = [dim for dim in range(tensor.ndim) if dim != axis]
        largest, lost = (values.amax(others, keepdim=True) for values in (finite, noise))
        size = torch.minimum(size, torch.maximum(FAR * largest, lost))
    size = torch.where(masks, whole, size) if masks.any() else size
    return size.clamp_min(torch.finfo(tensor.dtype).tiny)


def same_shapes(each: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Whether these are the same number of outputs, of the same shapes."""
    return len({tuple(tensor.shape for tensor in its) for its in each}) == 1
