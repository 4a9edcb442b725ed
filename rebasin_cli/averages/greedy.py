"""A greedy soup: the mean of those models that do each other good, by the loss on held-out samples.

Wortsman et al. 2022, Model soups, algorithm 1 (arXiv:2203.05482); there a model stays where accuracy does not
fall, here where the loss falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Measured(Protocol):
    """What a measurement gives; `networks.evaluation.Scores` does."""

    @property
    def loss(self) -> float: ...


Found = TypeVar("Found", bound=Measured)


@dataclass(frozen=True)
class Try(Generic[Found]):
    """A model that was added to those kept so far (for the first: alone), and whether it stayed."""

    model: int
    scores: Found
    kept: bool


@dataclass(frozen=True)
class Soup(Generic[Found]):
    """`kept` models by number, in the order in which they were added; `singles` are the scores of each alone.

    `scores` are those of the soup: its loss is at most that of the best single model, `kept[0]`.
    """

    kept: tuple[int, ...]
    scores: Found
    singles: tuple[Found, ...]
    tries: tuple[Try[Found], ...]


def greedy(models: int, measure: Callable[[Sequence[int]], Found]) -> Soup[Found]:
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
