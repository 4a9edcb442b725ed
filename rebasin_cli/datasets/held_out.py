"""Training samples that are kept apart, to choose by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import Data
from .batches import checked, steady

SHARE = 10  # one sample, or one batch, of so many
MOST = 5_000


def held_out(data: Iterable[Any], seed: int, most: int = MOST) -> tuple[Iterable[Any], Iterable[Any]]:
    """The data without some samples, and these: a tenth, at most `most`.

    Of a data set they are drawn by the seed; of batches that somebody else makes the first of every ten are
    taken. What is too little to be parted is used for both.
    """
    if isinstance(data, Data):
        size = min(most, data.samples // SHARE)
        if not size:
            return data, data
        order = torch.randperm(data.samples, generator=torch.Generator().manual_seed(seed))
        parts = order[size:], order[:size]  # in random order: none of a class alone
        rest, held = (replace(data, source=data.source.at(part)) for part in parts)
        return rest, held
    return parted(steady(data), every=SHARE, at=0, read=checked)


def parted(
    batches: Iterable[Any], *, every: int, at: int, read: Callable[[Iterable[Any]], Iterator[Any]] = iter
) -> tuple[Some, Some]:
    """The batches without one of `every` so many, and these: of each round that `at` 0, 1 … `every` − 1."""
    return Some(batches, every, at, False, read), Some(batches, every, at, True, read)


@dataclass(frozen=True)
class Some:
    """One of `every` so many batches (`held`), or all others; of a single batch, that one.

    `read` is how to go through them.
    """

    batches: Iterable[Any]
    every: int
    at: int
    held: bool
    read: Callable[[Iterable[Any]], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        only = None
        for number, batch in enumerate(self.read(self.batches)):
            if taken := (number % self.every == self.at) == self.held:
                yield batch
            only = batch if number == 0 and not taken else None
        if only is not None and not self.held:
            yield only
