"""Any invertible matrix; of a starred word, one in each block. A balance leaves rotations of it."""

import math

import torch

from ..group import Both, Rotations, scales, singular

FLAT = 1e-12  # of the largest eigenvalue: a product with a smaller one is singular


class Invertible(Rotations):
    told = "any invertible matrix"
    balances = True

    def drawn(self, n: int, rng: torch.Generator, *, balanced: bool = False) -> torch.Tensor:
        q = super().drawn(n, rng)
        return q if balanced else q * scales(n, rng) @ super().drawn(n, rng)

    def wrong(self, map_: torch.Tensor) -> str:
        return singular(map_)

    def balance(self, x: torch.Tensor, q: torch.Tensor) -> torch.Tensor | None:
        """The symmetric g with (gX)(gX)ᵀ = (g⁻¹Q)(g⁻¹Q)ᵀ; None where none is, up to rounding.

        g² is the geometric mean of (XXᵀ)⁻¹ and QQᵀ.
        """
        a, b = x @ x.mT, q @ q.mT
        root = _power(a, 0.5)
        if root is None or (middle := _power(root @ b @ root, 0.5)) is None:
            return None
        inverse = torch.linalg.inv(root)
        square = inverse @ middle @ inverse
        return _power((square + square.mT) / 2, 0.5)

    def learned(self, numbers: torch.Tensor) -> Both:
        return torch.matrix_exp(numbers), torch.matrix_exp(-numbers).mT


def _power(matrix: torch.Tensor, exponent: float) -> torch.Tensor | None:
    """A power of positive matrices; None where one of them is singular."""
    values, vectors = torch.linalg.eigh(matrix)
    if not bool((values[..., 0] > FLAT * values[..., -1]).all()) or not math.isfinite(float(values.sum())):
        return None
    power: torch.Tensor = vectors * values.pow(exponent)[..., None, :] @ vectors.mT
    return power


GROUP = Invertible()
