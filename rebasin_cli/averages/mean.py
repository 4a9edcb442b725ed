"""The weighted mean of tensors: exact enough that nobody has to think about it.

Sums are float64 whatever the stored dtype, and are rounded once. The models are added in an order that their
values decide, so the order in which they were named does not show where their weights are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 15  # values worked on at once: they stay in the cache, and torch starts no threads for so few
TOLD_APART = 16  # values of a block by which models are ordered; all of them where these are equal
LAST = 1 << 29  # the bit of a float64 that is a float32's last
BELOW = LAST - 1  # and all below it


def mean_of(parts: Sequence[Tensor], weights: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Σ w_k · part_k for tensors of one shape, in `dtype`; a new tensor, laid out plainly.

    Equal weights that add up to 1 are a sum and one division: the mean of n equal tensors is that tensor, bit
    for bit. Values beyond the range of `dtype` become infinite (NaN where it has no infinity).
    """
    shape, complex_ = parts[0].shape, dtype.is_complex
    device = parts[0].device
    flat = [(torch.view_as_real(part) if part.is_complex() else part).reshape(-1) for part in parts]
    flat = [values if values.device == device else values.to(device) for values in flat]
    result = torch.empty(flat[0].numel(), dtype=torch.float32 if complex_ else dtype, device=device)
    wide = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
    sums, mean = torch.empty(min(result.numel(), BLOCK), dtype=wide, device=device), _is_mean(weights)
    for *blocks, made in zip(*map(_blocks, (*flat, result)), strict=True):
        total = sums if made.numel() == sums.numel() else sums[: made.numel()]
        made.copy_(odd(_add(blocks, weights, total, mean=mean), result.dtype))
    return torch.view_as_complex(result.view(*shape, 2)) if complex_ else result.view(shape)


def _blocks(values: Tensor) -> Sequence[Tensor]:
    count = values.numel()
    return values.split(BLOCK) if count > BLOCK else [values][:count]


def _is_mean(weights: Sequence[float]) -> bool:
    return len({*weights}) == 1 and abs(weights[0] * len(weights) - 1) < 1e-12


def _add(blocks: Sequence[Tensor], weights: Sequence[float], total: Tensor, *, mean: bool) -> Tensor:
    """The weighted sum, in `total`."""
    order: Sequence[int] = range(len(blocks))
    if len(blocks) > 2 or not mean:  # a sum of two is the same either way
        order = _order(blocks, weights)
    first, *rest = order
    total.copy_(blocks[first])
    if not mean:
        total *= weights[first]
    for k in rest:
        block = blocks[k] if blocks[k].dtype.itemsize > 1 else blocks[k].float()  # float8 knows no sum
        total.add_(block, alpha=1 if mean else weights[k])
    if mean:
        total /= len(blocks)
    # No digits to spare: what is equal in all shall stay so.
    if any(block.dtype == total.dtype for block in blocks) and _adds_up(weights):
        alike = torch.stack([block == blocks[0] for block in blocks]).all(0)
        return torch.where(alike, blocks[0].to(total.dtype), total)
    return total


def _adds_up(weights: Sequence[float]) -> bool:
    return abs(sum(weights) - 1) < 1e-12


def _order(blocks: Sequence[Tensor], weights: Sequence[float]) -> list[int]:
    """The models by weight, dtype and the bytes of this block: the same whoever is named first."""

    def key(k: int, count: int | None) -> tuple[float, str, bytes]:
        values = blocks[k][:count].contiguous().view(torch.uint8)
        return weights[k], str(blocks[k].dtype), values.cpu().numpy().tobytes()

    keys = [key(k, TOLD_APART) for k in range(len(blocks))]
    if len(set(keys)) < len(keys):
        keys = [key(k, None) for k in range(len(blocks))]
    return sorted(range(len(blocks)), key=keys.__getitem__)


def odd(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Values that a conversion to `dtype` rounds once, to nearest, ties to even; `exact` may be changed.

    torch goes from float64 to the narrow dtypes by way of float32: where that lands on a tie, the second
    rounding forgets on which side of it the value was. So what float32 cannot hold is cut off here, and
    its last bit says that there was more ("round to odd", Boldo and Melquiond 2008).
    """
    if dtype.itemsize >= 4 or exact.dtype != torch.float64:
        return exact
    bits = exact.view(torch.int64)
    more = (bits & BELOW).add_(BELOW).bitwise_and_(LAST)
    bits.bitwise_and_(~BELOW).bitwise_or_(more)
    return exact.to(torch.float32)
