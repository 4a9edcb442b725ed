"""A soft start: permutations that are unsure of themselves while they agree with each other.

Every word holds a doubly stochastic matrix: how likely each unit of the model stands in for each unit of
the reference. In turn, each becomes the Sinkhorn projection of exp(similarity / T), where the similarity
counts the neighbours as softly as they stand, and T falls. Choices that depend on each other are so made
together, where coordinate descent makes them one by one; it begins from what the last round comes to.

Rangarajan, Gold, Mjolsness 1996, "A novel optimizing network architecture with applications" (softassign);
Sinkhorn 1964.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...symmetry import assignment
from ...types import Permutations
from .pair import Pair

STEPS = 16
HOT, COLD = 1.0, 0.01  # temperatures, in standard deviations of the similarity
BALANCING = 3  # rounds of Sinkhorn a step: the next step goes on from there


def fits(words: Mapping[str, int], memory: int) -> bool:
    """Whether a float32 matrix for every word fits into `memory` bytes."""
    return 4 * sum(size**2 for size in words.values()) <= memory


def soft_start(pair: Pair, start: Permutations, order: Sequence[str]) -> dict[str, Any]:
    """Permutations to begin a descent from, by annealing from `start`; words take turns in `order`."""
    soft = {
        word: torch.eye(len(perm), dtype=pair.dtype, device=pair.device)[perm] for word, perm in start.items()
    }
    for step in range(STEPS):
        temperature = HOT * (COLD / HOT) ** (step / (STEPS - 1))
        for word in order:
            similarity = pair.soft_matrix(word, soft)
            spread = similarity.std().item()
            if spread > 0:
                soft[word] = balanced(similarity.div_(temperature * spread))
    solved = {word: assignment.solve(pair.soft_matrix(word, soft)).perm for word in order}
    return {**start, **solved}


def balanced(logits: torch.Tensor, rounds: int = BALANCING) -> torch.Tensor:
    """exp(logits) scaled to row and column sums of 1, in place and nearly: the columns come last."""
    weights = logits.sub_(logits.max(dim=1, keepdim=True).values).exp_()
    columns = weights.new_ones(len(weights))
    tiny = torch.finfo(weights.dtype).tiny
    for _ in range(rounds):
        rows = 1 / (weights @ columns).clamp_min_(tiny)
        columns = 1 / (rows @ weights).clamp_min_(tiny)
    return weights.mul_(rows[:, None]).mul_(columns)
