"""How many samples and epochs a method gets of the data, by the time that there is for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from ...datasets import Data
from ...datasets.batches import checked, size_of
from ...types import Batches

FEWEST = 200  # samples to look at units on
LOOKED = 10_000  # samples that units are looked at on, where there is time
LOOK = 3.0  # forward passes that looking at a sample of two models takes
STEP = 6.0  # forward passes that a step of learning takes, with the matching in it
LEAST = 1_000  # samples, below which nothing is learnt


@dataclass(frozen=True)
class Size:
    """The `options` of a method and the seconds that are reckoned for `each` sample that it reads.

    Or what is the `least` that it does. `samples` are those that it reads, where that is known.
    """

    options: Any = None
    each: float = 0.0
    samples: int | None = 0
    least: str = ""


def learns(module: Any) -> bool:
    return hasattr(module.Options, "learning_rate")


def sized(
    module: Any, room: float, *, a_sample: float, models: int, there: int | None, counts: bool = True
) -> Size:
    """As much of the data as `room` seconds are enough for; `a_sample` are those of a forward pass.

    `there` are samples of a data set whose length is known; of one that is not, what learns reads all where
    the clock does not count, and is ended by it. What needs weights alone is not cut short, and nothing is
    reckoned for it.
    """
    if not module.NEEDS:
        return Size(module.Options())
    if not learns(module):
        each, passes = LOOK * a_sample, 1 if module.MANY else models - 1
        samples = int(min(LOOKED, room / (passes * each)))
        if samples < FEWEST:
            return Size(least=f"look at {FEWEST} samples")
        return Size(
            module.Options(limit=samples), each, None if there is None else passes * min(samples, there)
        )
    each = STEP * a_sample
    samples = int(room / each)
    if samples < LEAST:
        return Size(least=f"learn from {LEAST:,} samples")
    if there is None:
        return Size(module.Options(epochs=1, limit=samples if counts else None), each, None)
    if samples < there:
        return Size(module.Options(epochs=1, limit=samples), each, samples)
    epochs = min(module.Options().epochs, samples // max(1, there))
    return Size(module.Options(epochs=epochs, limit=None), each, epochs * there)


@dataclass(frozen=True)
class _Watched(Data):
    look: Callable[[], None] = lambda: None

    def _given(self, inputs: Tensor) -> Tensor:
        self.look()
        return super()._given(inputs)


def watched(data: Data, look: Callable[[], None]) -> Data:
    """The same samples; before every batch, of every part of them, it looks at the time."""
    return _Watched(**{each.name: getattr(data, each.name) for each in fields(Data)}, look=look)


class Reading:
    """Batches of somebody else's, of which nobody knows how many there are; `samples` were read.

    Between two it looks at the time, as `watched` data do.
    """

    def __init__(self, batches: Batches, look: Callable[[], None]):
        self._batches, self._look, self.samples = batches, look, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in checked(self._batches):
            self._look()
            self.samples += size_of(batch[1], batch[0])
            yield batch
