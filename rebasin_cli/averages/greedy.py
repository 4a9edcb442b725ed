"""A greedy soup: the mean of those models that do each other good, by the loss on held-out samples.

Wortsman et al. 2022, Model soups, algorithm 1 (arXiv:2203.05482); there a model stays where accuracy does not
fall, here where the loss falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Measured(Protocol):
    """What a measurement gives; `networks.evaluation.Scores` does."""

    @property
    def loss(self) -> float: ...


@dataclass(frozen=True)
class Try:
    """A model that was added to those kept so far (for the first: alone), and whether it stayed."""

    model: int
    scores: Measured
    kept: bool


@dataclass(frozen=True)
class Soup:
    """`kept` models by number, in the order in which they were added; `singles` are the scores of each alone.

    `scores` are those of the soup: its loss is at most that of the best single model, `kept[0]`.
    """

    kept: tuple[int, ...]
    scores: Measured
    singles: tuple[Measured, ...]
    tries: tuple[Try, ...]


def greedy(models: int, measure: Callable[[Sequence[int]], Measured]) -> Soup:
    """From the best model on, add the next best wherever the loss of the mean falls by it.

    `measure` gives the scores of the mean of these models. It is asked 2·n − 1 times.
    """
    singles = tuple(measure((k,)) for k in range(models))
    best, *others = sorted(range(models), key=lambda k: (singles[k].loss, k))
    kept: tuple[int, ...] = (best,)
    scores, tries = singles[best], [Try(best, singles[best], True)]
    for k in others:
        found = measure((*kept, k))
        better = found.loss < scores.loss
        tries.append(Try(k, found, better))
        if better:
            kept, scores = (*kept, k), found
    return Soup(kept, scores, singles, tuple(tries))
