"""The learning rate of every step of a training."""

from __future__ import annotations

import math
from typing import Protocol

SCHEDULES = ("cosine", "constant", "late", "halving", "triangle")
HALVINGS = 12  # over all epochs, as 250 epochs with one every 20
PEAK = 5  # the epoch in which a triangle is highest


class Scheduled(Protocol):
    """What a recipe says about it."""

    @property
    def epochs(self) -> int: ...

    @property
    def learning_rate(self) -> float: ...

    @property
    def schedule(self) -> str: ...

    @property
    def warmup(self) -> float: ...


def learning_rate_at(recipe: Scheduled, step: int, steps: int) -> float:
    """The rate of one step of all: a linear rise, then as the schedule says."""
    if recipe.schedule == "triangle":
        return recipe.learning_rate * triangle(step * recipe.epochs // steps, recipe.epochs)
    rise = round(recipe.warmup * steps)
    if step < rise:
        return recipe.learning_rate * (step + 1) / rise
    return recipe.learning_rate * _share(recipe.schedule, step / steps, (step - rise) / (steps - rise))


def _share(schedule: str, whole: float, behind: float) -> float:
    """Of the largest rate: where a share `whole` of all steps is done, `behind` of those after the rise."""
    if schedule == "constant":
        return 1.0
    if schedule == "late":
        return 1 - 0.99 * min(max((whole - 0.5) / 0.4, 0.0), 1.0)
    return halving(whole) if schedule == "halving" else cosine(behind)


def cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))


def halving(share: float) -> float:
    return 0.5 ** int(share * HALVINGS)


def triangle(epoch: int, epochs: int) -> float:
    """The same throughout an epoch: 0 in the first, highest in the sixth, down in a line to the end."""
    peak = min(PEAK, epochs // 2)
    return epoch / peak if epoch <= peak else (epochs - epoch) / (epochs - peak)
