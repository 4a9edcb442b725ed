"""STE-MM: learn permutations of many models at once, so that the loss is small everywhere between them.

As the straight-through estimator, but the point at which each step takes the loss is a random mixture of all
models. Its gradient serves every model, times the share that the model has in the mixture.

Ito, Yamada and Kumagai 2025, section 4.1, Algorithm 1 (ICML, PMLR 267).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import UsageError, unknown
from ..registry import option
from . import MatchResult, Problem
from .straight_through.search import search
from .straight_through.training import Training, memory

__all__ = ["Options", "match", "memory"]

NEEDS = frozenset({"network", "data"})
MANY = True
SAMPLES = None
DECLARES = frozenset()


def uniforms(rng: torch.Generator, count: int) -> torch.Tensor:
    """Uniform numbers over their sum: more in the middle than the simplex has (at 10, 0.058 around 0.1)."""
    drawn = torch.rand(count, generator=rng, dtype=torch.float64)
    return drawn / drawn.sum()


def dirichlet(rng: torch.Generator, count: int) -> torch.Tensor:
    """Uniform on the simplex: Dirichlet(1, …, 1) (at 10, 0.090 around 0.1)."""
    drawn = -torch.log1p(-torch.rand(count, generator=rng, dtype=torch.float64))
    return drawn / drawn.sum()


PRIORS = {"uniforms": uniforms, "dirichlet": dirichlet}


@dataclass(frozen=True)
class Options(Training):
    """Those of the training, and `weights_prior`, how mixtures are drawn: uniforms, or dirichlet."""

    weights_prior: str = option(
        "uniforms", "How each step's mixture is drawn; uniforms are normalised.", choices=PRIORS
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights_prior not in PRIORS:
            raise unknown("weights prior", self.weights_prior, PRIORS)


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for every model but the first, learnt on `problem.data` with `problem.network`.

    The objective is the loss at the mean of all models on held-out training samples, in nats and negative.
    A sweep is one step. Raises UsageError for fewer than two models, and as `straight_through.search` does.
    """
    if len(problem.models) < 2:
        raise UsageError("ste-mm needs at least two models")
    return search(problem, options, PRIORS[options.weights_prior])
