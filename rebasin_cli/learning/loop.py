"""The training loop: passes over batches, and from each a step of whatever learns.

Of several ranks each takes the loss of some samples of every batch (`shares`); all else each does alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..datasets import Data
from ..datasets.batches import checked, head, size_of
from ..errors import DataError, NetworkError
from ..runtime.ranks import ALONE, Ranks
from ..runtime.seeds import generator
from ..runtime.signals import holding
from .learner import Learner
from .shares import sharing

__all__ = ["Learner", "Made", "Passes", "a_pass", "learn"]


@dataclass(frozen=True)
class Passes:
    """`epochs` passes over training samples, None: without end. An order is drawn for each by the `seed`.

    Of each up to `limit` samples; batches with fewer than `least` are left out, since norms need several.
    """

    data: Iterable[Any]
    seed: int = 0
    epochs: int | None = 1
    limit: int | None = None
    least: int = 1
    augment: bool = False

    def batches(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        rng = generator(self.seed, f"order of epoch {epoch}")
        return a_pass(self.data, rng, limit=self.limit, least=self.least, augment=self.augment)

    @cached_property
    def length(self) -> int | None:
        """Steps of a pass, where they are known before."""
        if not isinstance(self.data, Data):
            return None
        return len(self.data) if self.whole else math.ceil((self.limit or 0) / self.data.batch_size)

    @property
    def whole(self) -> bool:
        """Whether the limit cuts nothing off a data set."""
        return isinstance(self.data, Data) and (self.limit is None or self.limit >= self.data.samples)

    @property
    def notes(self) -> dict[str, float]:
        """What a state says: "steps" in all, where that is known."""
        return {"steps": float(self.length * self.epochs)} if self.length and self.epochs else {}


@dataclass(frozen=True)
class Made:
    """Passes without end over batches that are made for it, anew for each."""

    make: Callable[[], Iterable[tuple[Any, Any]]]
    epochs = length = None
    whole = False

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        return self.make()


def a_pass(
    data: Iterable[Any],
    rng: torch.Generator,
    *,
    limit: int | None = None,
    least: int = 1,
    augment: bool = False,
) -> Iterator[tuple[Any, Any]]:
    """The batches of one pass, a data set's in an order that `rng` draws; else as in `Passes`."""
    left, batches = limit, checked(data)  # which says so where there are none
    if isinstance(data, Data) and data.samples:
        batches = data.shuffled(rng, augment=augment)
    for inputs, targets in batches:
        size = size_of(targets, inputs)
        if left is not None and size > left:
            inputs, targets, size = head(inputs, left), head(targets, left), left
        if size >= least:
            yield inputs, targets
        left = None if left is None else left - size
        if left is not None and left <= 0:
            return


def learn(learner: Learner, passes: Passes | Made, ranks: Ranks = ALONE) -> None:
    """Take all steps that are still to come; several `ranks`, who have the same to learn from, share them.

    Raises DataError where there are no batches, NetworkError when the loss is no longer a number.
    """
    number = 0
    if learner.over():
        return
    with holding() as held, sharing(learner, ranks) as step:
        for epoch in itertools.count() if passes.epochs is None else range(passes.epochs):
            first, samples, mean = number, 0, math.nan
            total: Any = 0.0
            if passes.whole and number + (passes.length or 0) <= learner.done:  # nothing of it is left
                number += passes.length or 0
            else:
                with learner.within(epoch):
                    for inputs, targets in passes.batches(epoch):
                        number += 1
                        if number > learner.done:
                            loss = step.loss(inputs, targets)
                            value: Any = loss.item() if learner.every == 1 else loss.detach()
                            if learner.every:
                                size = size_of(targets, inputs)
                                total, samples = total + size * value, samples + size
                                if (number - first) % learner.every == 0:
                                    mean = _finite(float(total) / samples, number, learner)
                            step.backward()
                            with held:  # nothing may be left half-done
                                learner.move()
                                learner.done = number
                                learner.tell(value if learner.every == 1 else math.nan)
                        if number == learner.done:
                            learner.after(number - first, mean)
                        if number >= learner.done and learner.over():
                            return
                if number == first:
                    raise DataError(
                        "the data holds no batch of two samples or more, which the network's norms need",
                        hint="Give more samples: --limit 2 at least",
                    )
                if samples:
                    mean = _finite(float(total) / samples, number, learner)
            if number == learner.done:
                step.settle()
                learner.ended(epoch, mean)


def _finite(mean: float, step: int, learner: Learner) -> float:
    if math.isfinite(mean):
        return mean
    raise NetworkError(
        f"training diverged: the loss is {mean} at step {step}",
        hint=f"Try a tenth of the learning rate: --lr {learner.rate / 10:g}"
        if learner.done
        else "No step was taken yet: look at the weights, at the samples and at --loss",
    )
