"""A doubly stochastic matrix as a mixture of permutations, by Birkhoff's theorem, and draws from it.

The convention is that of permutations: entry (i, j) says how far the unit that is now at i is the old j.
Tatro et al. 2020, appendix E.4, equations 52 to 55.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...symmetry import assignment

ROUNDING = 1e-14  # what is left of an entry that was taken whole


@dataclass(frozen=True)
class Mixture:
    """Permutations (terms, n) and their shares (terms,), float64: the largest come nowhere in particular."""

    permutations: Tensor
    shares: Tensor

    def draw(self, rng: torch.Generator) -> Tensor:
        """One permutation, as often as its share says."""
        return self.permutations[int(torch.multinomial(self.shares, 1, generator=rng).item())]

    def matrix(self) -> Tensor:
        """Σ α_i P_i, float64."""
        eye = torch.eye(self.permutations.shape[1], dtype=torch.float64)
        return torch.einsum("k,kij->ij", self.shares, eye[self.permutations])


def mixture_of(matrix: Tensor, terms: int | None = None) -> Mixture:
    """Greedily: the best assignment on what is left, as much of it as its smallest entry allows, and again.

    At most `terms` of them (None: until nothing is left), their shares made to add up to 1. A matrix whose
    entries do not quite add up ends where no permutation fits into what is left; one in which none fits at
    all is its nearest permutation.
    """
    left = matrix.detach().to("cpu", torch.float64).clone()
    size = len(left)
    rows = torch.arange(size)
    found: list[Tensor] = []
    shares: list[Tensor] = []
    while terms is None or len(found) < terms:
        there = left > 0
        outside = -(size + 1.0)  # no sum makes up for one of these
        perm = assignment.solve(torch.where(there, left, outside)).perm
        if not there[rows, perm].all():
            break
        share = left[rows, perm].min()
        left[rows, perm] -= share
        left[left < ROUNDING] = 0
        found.append(perm)
        shares.append(share)
    if not found:
        return Mixture(nearest(matrix)[None], torch.ones(1, dtype=torch.float64))
    weights = torch.stack(shares)
    return Mixture(torch.stack(found), weights / weights.sum())


def nearest(matrix: Tensor) -> Tensor:
    """The permutation whose matrix is nearest: the best assignment."""
    return assignment.solve(matrix.detach().to("cpu", torch.float64)).perm
