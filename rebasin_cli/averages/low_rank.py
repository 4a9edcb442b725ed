"""Sums of products of low rank, and the best approximation of one by a smaller rank, without the matrix.

With B = [B₁ …] (m × R) and A = [A₁; …] (R × n), QR of B and of Aᵀ and an SVD of the R × R matrix between give
the singular values of B·A. Cutting them off is best in the Frobenius norm (Eckart and Young 1936), and the
error is the norm of those cut off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UsageError

Factors = tuple[Tensor, Tensor]  # (m, r) and (r, n), float64: their product is meant
FULL = "full"


@dataclass(frozen=True)
class Rank:
    """How much of a sum is kept: at most `most` singular values, or as few as hold a `share` of the energy.

    All that are not 0 within round-off where neither is given. Energy is the sum of their squares.
    """

    most: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str | None) -> Rank:
        """A whole number, a share such as 0.99, or "full". Raises UsageError for anything else.

        >>> Rank.parse("16"), Rank.parse("0.99").share, Rank.parse("full") == Rank()
        (Rank(most=16, share=None), 0.99, True)
        """
        if text is None or text == FULL:
            return cls()
        try:
            if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31:
                return cls(most=int(text))
            share = float(text)
        except ValueError:
            share = math.nan
        if "." in text and 0 < share < 1:
            return cls(share=share)
        raise UsageError(
            f"--rank {text[:60]!r}: expected a rank, a share of the energy, or {FULL}",
            hint=f"Write a whole number such as 16, a share such as 0.99, or {FULL}",
        )

    def of(self, singular: Tensor, longest: int) -> int:
        """How many of these singular values are kept, at least 1; `longest` is the matrix's larger side."""
        noise = singular[0] * longest * torch.finfo(torch.float64).eps
        there = int((singular > noise).sum())
        if self.share is not None:
            energy = (singular / singular[0].clamp_min(torch.finfo(torch.float64).tiny)).square()
            left = energy.flip(0).cumsum(0).flip(0)  # from each one on; small ones are added first
            there = min(there, int((left > (1 - self.share) * left[0]).sum()))
        return max(1, there if self.most is None else min(there, self.most))


@dataclass(frozen=True)
class Best:
    """The best `factors` of a sum: √S to each side. `size` is the sum's Frobenius norm, `cut` the error's."""

    factors: Factors
    size: float
    cut: float

    @property
    def rank(self) -> int:
        return self.factors[0].shape[1]


def joined(parts: Sequence[Factors], weights: Sequence[float]) -> Factors:
    """The factors side by side, their product the weighted sum of the products."""
    ups = [up * weight for (up, _), weight in zip(parts, weights, strict=True)]
    return torch.cat(ups, 1), torch.cat([down for _, down in parts])


def best(factors: Factors, rank: Rank) -> Best:
    """The best approximation of a product by one of this rank. Raises OverflowError for infinite numbers."""
    up, down = factors
    left, upper = torch.linalg.qr(up)
    right, lower = torch.linalg.qr(down.mT)
    core = upper @ lower.mT
    if not bool(core.isfinite().all()):
        raise OverflowError("a product of factors is beyond the range of float64")
    u, singular, v = torch.linalg.svd(core, full_matrices=False)
    longest = max(len(up), down.shape[1])
    if float(singular[0]) <= _norm(upper) * _norm(lower) * longest * torch.finfo(torch.float64).eps:
        singular = torch.zeros_like(singular)  # the parts cancel out, and what is left is round-off
    kept = rank.of(singular, longest)
    root = singular[:kept].sqrt()
    made = left @ (u[:, :kept] * root), (v[:kept] * root[:, None]) @ right.mT
    return Best(made, _norm(singular), _norm(singular[kept:]))


def distance(one: Factors, other: Factors) -> float:
    """The Frobenius norm of the difference of two products."""
    up, down = joined([one, other], [1.0, -1.0])
    return _norm(torch.linalg.qr(up).R @ torch.linalg.qr(down.mT).R.mT)


def _norm(values: Tensor) -> float:
    largest = float(torch.linalg.vector_norm(values, math.inf)) if values.numel() else 0.0
    # squares of large values are beyond float64
    return largest * float(torch.linalg.vector_norm(values / largest)) if largest else 0.0
