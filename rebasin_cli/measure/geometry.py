"""Distances between models, and the angles of the triangles that they span.

Models in one basin are often said to form a regular simplex, all angles near 60°. But so do points that have
nothing to do with each other, once there are many dimensions: two independent directions are nearly at right
angles, so all distances are nearly alike. An angle says something only beside that of such points, the null.

Ito, Yamada, Kumagai 2025 (STE-MM), section 6.1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from ..runtime.seeds import generator
from ..types import Tensors


@dataclass(frozen=True)
class Geometry:
    """`distances` (L2) of all pairs (1,2), (1,3) … (2,3) …; `angles` in degrees of all triplets, three each.

    An angle is NaN at a vertex where two models are the same.
    """

    distances: tuple[float, ...]
    angles: tuple[float, ...]


def geometry(models: Sequence[Tensors], names: Collection[str]) -> Geometry:
    """Of two models or more, over the tensors called `names` together; added in float64."""
    squares = dict.fromkeys(combinations(range(len(models)), 2), 0.0)
    for name in names:
        points = [model[name].detach().double() for model in models]
        for i, j in squares:
            squares[i, j] += (points[i] - points[j]).square().sum().item()
    apart = {frozenset(pair): math.sqrt(square) for pair, square in squares.items()}
    angles = [
        _angle(apart[frozenset((at, i))], apart[frozenset((at, j))], apart[frozenset((i, j))])
        for triplet in combinations(range(len(models)), 3)
        for at in triplet
        for i, j in [[k for k in triplet if k != at]]
    ]
    return Geometry(tuple(apart.values()), tuple(angles))


def independent(models: Sequence[Tensors], names: Collection[str], *, seed: int = 0) -> list[Tensors]:
    """The null: for every model one of Gaussian directions, each tensor as long as the model's own."""
    rng = generator(seed, "independent points")
    return [{name: _drawn(model[name].detach().double(), rng) for name in names} for model in models]


def _drawn(like: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    drawn = torch.randn(like.shape, generator=rng, dtype=torch.float64)
    longer: torch.Tensor = like.norm().cpu() / drawn.norm()
    return drawn * longer


def _angle(one: float, other: float, opposite: float) -> float:
    """Between two sides of a triangle, in degrees, by the law of cosines."""
    if one == 0 or other == 0:
        return math.nan
    cosine = (one**2 + other**2 - opposite**2) / (2 * one * other)
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))
