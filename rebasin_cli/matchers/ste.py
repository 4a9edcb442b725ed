"""Straight-through estimator: learn the permutation of the second model that makes the midpoint's loss small.

The loss at ½A + ½πB has no gradient with respect to a permutation. So a copy B̃ of A is trained: forward, its
place is taken by the permutation of B nearest to it; backward, the gradient goes to B̃ as if it were there
itself. What counts in the end is the loss on training samples that were held out, at the best temperature.

Ainsworth et al. 2022, section 3.3 and Algorithm 2, arXiv:2209.04836.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..registry import option
from . import MatchResult, Problem, check_two
from .straight_through.search import initial, objective, search
from .straight_through.settings import Training, memory

__all__ = ["Options", "initial", "match", "memory", "objective"]

NEEDS = frozenset({"network", "data"})
MANY = False
GROUPS = True
SAMPLES = None
DECLARES: frozenset[str] = frozenset()

MIXTURES = ("half", "near", "uniform")
NEAR = 0.1  # of ½, on either side
PARAMETERS = ("model", "midpoint")
# M̃ is ½(A + B̃), so a step of M̃ is two of B̃, and M̃'s gradient is twice B̃'s, which only SGD minds
SCALES = {"model": {"adam": 1.0, "sgd": 1.0}, "midpoint": {"adam": 2.0, "sgd": 4.0}}


@dataclass(frozen=True)
class Options(Training):
    """Those of the training, and: `mixture`, half takes the loss at λ = ½, near at a random λ in 0.4–0.6 each
    step, uniform at any; None is half, and near where rotations are learned, too.

    `parameter`: what the optimizer moves, B̃ itself (model) or the midpoint M̃ = ½(A + B̃), of which B is
    then matched to 2M̃ − A. The two differ by the length of their steps and in nothing else.
    """

    mixture: str | None = option(
        None,
        "The λ of each step: ½ (half), random in 0.4–0.6 (near; with --groups all, unless said), or in 0–1.",
        choices=MIXTURES,
    )
    parameter: str = option("model", "What the optimizer moves.", choices=PARAMETERS)


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for the one model beside the reference, learnt on `problem.data` with `problem.network`.

    With groups also rotations, invertible maps and scales, by the gradient itself, and signs. The objective
    is the loss at the midpoint on held-out training samples, in nats and negative, of what loses least there
    at the best temperature. A sweep is
    one step. Raises UsageError for more than two models, and as `straight_through.search` does.
    """
    check_two(problem, "ste", "For many models: rebasin merge --method ste-mm, which learns all at once")
    mixture = options.mixture or ("near" if problem.groups else "half")

    def weights(rng: torch.Generator, count: int) -> torch.Tensor:
        share = 0.5 if mixture == "half" else torch.rand((), generator=rng).item()
        share = 0.5 + NEAR * (2 * share - 1) if mixture == "near" else share
        return torch.tensor([1 - share, share])

    return search(problem, options, weights, scale=SCALES[options.parameter][options.optimizer])
