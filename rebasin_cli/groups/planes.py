"""No order, and a complex number for each two units: an angle and a scale.

They are of queries and keys under rotary positions, which turn each pair by angles of its own.
"""

from __future__ import annotations

import math

import torch

from .group import CLOSE, Both, Group, Scaled, scales, singular

SCALE = Scaled()


class Planes(Group):
    matrix = more = balances = True
    permutes = False

    def units(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which units (n/2,) are the real and which the imaginary parts of the complex numbers that turn."""
        raise NotImplementedError

    def turning(self, numbers: torch.Tensor) -> torch.Tensor:
        """Complex numbers (…, n/2) as the matrices (…, n, n) that multiply by them."""
        n = 2 * numbers.shape[-1]
        real, imaginary = self.units(n)
        found = torch.zeros(*numbers.shape[:-1], n, n, dtype=torch.float64)
        found[..., real, real] = found[..., imaginary, imaginary] = numbers.real
        found[..., imaginary, real], found[..., real, imaginary] = numbers.imag, -numbers.imag
        return found

    def numbers_of(self, matrices: torch.Tensor) -> torch.Tensor:
        """The complex numbers (…, n/2) whose matrices are nearest to these (…, n, n), up to a half."""
        real, imaginary = self.units(matrices.shape[-1])
        along = matrices[..., real, real] + matrices[..., imaginary, imaginary]
        return torch.complex(along, matrices[..., imaginary, real] - matrices[..., real, imaginary])

    def unfit(self, n: int) -> str:
        return f"{n} units are no pairs" if n % 2 else ""

    def nearest(self, similarity: torch.Tensor) -> Both:
        """Of each the angle of its 2 × 2 block, which is worth that number's size."""
        numbers = self.numbers_of(similarity)
        worth = numbers.abs()
        angles = torch.where(worth > 0, numbers / worth.clamp_min(1e-300), 1.0)
        return self.turning(angles), worth.sum(-1)

    def drawn(self, n: int, rng: torch.Generator, *, balanced: bool = False) -> torch.Tensor:
        angles = torch.rand(n // 2, generator=rng, dtype=torch.float64) * (2 * math.pi)
        size = scales(n // 2, rng)
        return self.turning(torch.polar(torch.ones_like(size) if balanced else size, angles))

    def wrong(self, map_: torch.Tensor) -> str:
        nearest = self.turning(self.numbers_of(map_) / 2)
        if float((map_ - nearest).abs().max()) > CLOSE * float(map_.abs().max()):
            return "has a map that is no complex number a pair"
        return singular(map_)

    def balance(self, x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """As of scales, of both units of a pair together."""
        real, imaginary = self.units(x.shape[-2])
        first, second = (torch.cat([side[..., real, :], side[..., imaginary, :]], -1) for side in (x, q))
        scale = SCALE.balance(first, second)
        each = torch.empty(x.shape[:-1], dtype=scale.dtype)
        each[..., real] = each[..., imaginary] = scale
        return torch.diag_embed(each)

    def learnt(self, n: int) -> tuple[int, ...]:
        return (n // 2, 2)

    def learned(self, numbers: torch.Tensor) -> Both:
        """Of logarithms of scales, and angles (…, n/2, 2)."""
        scale, angle = numbers.double().unbind(-1)
        made = (self.turning(torch.polar(size.exp(), angle)) for size in (scale, -scale))
        turned, dual = (matrix.to(numbers) for matrix in made)
        return turned, dual
