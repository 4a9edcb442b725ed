"""One linear assignment: which unit of the model stands in for which unit of the reference."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from .errors import CheckpointError


def solve(similarity: torch.Tensor, *, overwrite: bool = False) -> torch.Tensor:
    """The permutation `perm` (n,) int64 that maximises Σ_i similarity[i, perm[i]], exactly.

    `similarity` is (n, n), reference unit × model unit, solved in float64. The same matrix gives the
    same permutation, also among equally good ones. With `overwrite` a float64 matrix is negated in
    place instead of copied. Raises CheckpointError for NaN and infinities, which come from such weights.

    Crouse 2016, "On implementing 2D rectangular assignment algorithms" (scipy's modified
    Jonker-Volgenant algorithm).
    """
    cost = similarity.to(torch.float64)
    cost = cost.neg_() if overwrite and cost is similarity else -cost
    # the sum is finite exactly where every entry is, short of overflow, and needs no second matrix
    if not np.isfinite(cost.sum().item()):
        raise CheckpointError(
            "a similarity matrix holds NaN or infinite values", hint="Check both models' weights"
        )
    _, columns = linear_sum_assignment(cost.numpy())
    return torch.from_numpy(columns.astype(np.int64))


def total(similarity: torch.Tensor, perm: torch.Tensor) -> float:
    """Σ_i similarity[i, perm[i]] in float64."""
    return similarity[torch.arange(len(perm)), perm].sum(dtype=torch.float64).item()
