"""Projections towards the doubly stochastic matrices: no entry negative, all rows and columns add up to 1.

For matrices (…, n, n), each by itself. Tatro et al. 2020, appendix E.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

PROJECTIONS = ("alternating", "dykstra", "sinkhorn")
TINY = 5e-4  # entries below are rounding and haste, and no part of a permutation: the published program's


def to_sums(matrices: Tensor) -> Tensor:
    """The nearest matrices, by the Frobenius norm, whose rows and columns all add up to 1.

    X + (1/n + s/n²) 11ᵀ − (1/n) X11ᵀ − (1/n) 11ᵀX, where s is the sum of all entries.
    """
    size = matrices.shape[-1]
    rows = matrices.sum(-1, keepdim=True)
    columns = matrices.sum(-2, keepdim=True)
    total = rows.sum(-2, keepdim=True)
    return matrices + ((1 + total / size) - rows - columns) / size


def alternating(matrices: Tensor, rounds: int) -> Tensor:
    """To no negative entry and to the sums in turn, as published: not to the nearest such matrix.

    The sums come last, so some entries are still a little negative.
    """
    for _ in range(rounds):
        matrices = to_sums(matrices.clamp(min=0))
    return matrices


def dykstra(matrices: Tensor, rounds: int) -> Tensor:
    """As `alternating`, what is clamped away given back before the next round: the nearest, in the limit.

    Boyle and Dykstra 1986; the sums are an affine set and need no correction.
    """
    correction = torch.zeros_like(matrices)
    for _ in range(rounds):
        lifted = matrices + correction
        clamped = lifted.clamp(min=0)
        correction = lifted - clamped
        matrices = to_sums(clamped)
    return matrices


def sinkhorn(matrices: Tensor, rounds: int) -> Tensor:
    """Rows and columns of the positive part divided by their sums in turn: nearest by relative entropy."""
    matrices = matrices.clamp(min=torch.finfo(matrices.dtype).tiny)
    for _ in range(rounds):
        matrices = matrices / matrices.sum(-1, keepdim=True)
        matrices = matrices / matrices.sum(-2, keepdim=True)
    return matrices


def projected(matrices: Tensor, how: str, rounds: int) -> Tensor:
    """By one of `PROJECTIONS`, in so many rounds."""
    return {"alternating": alternating, "dykstra": dykstra, "sinkhorn": sinkhorn}[how](matrices, rounds)


def cleaned(matrices: Tensor) -> Tensor:
    """Without the entries that are next to nothing or negative."""
    return torch.where(matrices < TINY, torch.zeros_like(matrices), matrices)
