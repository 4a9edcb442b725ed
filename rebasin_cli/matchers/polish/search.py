"""Refine permutations on the true loss of the models' mean: swaps are proposed, tried, and taken if it falls.

A step takes one word of one model. The slope of the loss proposes pairs of units, all of them are tried on
one batch, each by itself; those by which the loss falls there are taken together, as many as let it fall
most. What is taken must also let the loss fall on held-out samples, so nothing gets worse on those.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ...datasets import Data
from ...datasets.batches import head, size_of
from ...datasets.held_out import held_out
from ...errors import UsageError, no_number
from ...learning.loop import a_pass
from ...runtime.seeds import derive, generator
from ...spec.notation import Word
from ...spec.spec import FittedSpec
from ...symmetry import permutation
from ...types import Permutations, Tensors
from .. import Problem
from ..accounts import Polish
from .length import Length
from .midpoint import Midpoint

CANDIDATES, FEWEST = 64, 4  # swaps that are tried on a batch
SAMPLES, LEAST = 1_000, 16  # of a step, by what a network costs; twice as many (at least 500) are held out
WORK = 2e10  # multiplications of trying all candidates of a step, where the network lets that be
GRADIENT = 3  # forward passes that a gradient takes
PATIENCE = 8  # rounds over all words without a swap, after which nothing is left to gain


@dataclass(frozen=True)
class Polished:
    """The permutations, and what became of the held-out loss at the mean, in nats.

    `steps` were taken; given as the length, they give the same result again. `swaps` are pairs of units that
    changed places, `work` are multiplications of it all, as they are reckoned for every step.
    """

    permutations: tuple[Permutations, ...]
    before: float
    after: float
    steps: int
    swaps: int
    seconds: float
    work: float

    def account(self) -> Polish:
        """Without the seconds, which no two runs share."""
        return Polish(self.steps, self.swaps, self.before, self.after)


def polish(
    problem: Problem,
    permutations: Sequence[Permutations],
    length: Length,
    *,
    progress: Callable[[int, float], None] = lambda steps, loss: None,
) -> Polished:
    """Better permutations than those of a search, for every model but the first, or the same.

    Samples are of `problem.data`, in an order drawn by the seed, some of them held out. A time may be
    overrun by one step. `progress` hears of every step. Raises UsageError without a network or data,
    DataError and NetworkError.
    """
    if problem.network is None or problem.data is None:
        raise UsageError("--polish runs the network on data", hint="Give both: network=…, data=…")
    began = time.monotonic()
    with torch.inference_mode(False), torch.enable_grad():
        run = _Run(problem, permutations)
        before, steps = run.held_loss, 0
        turns = [(k, word) for k in range(len(run.models)) for word in run.places]
        idle = 0  # steps without a swap: two rounds of these end it
        for batch in run.batches():
            if (
                not turns
                or length.over(began, steps, steps * run.work)
                or (length.steps is None and idle > PATIENCE * len(turns))
            ):
                break
            idle = 0 if run.step(*turns[steps % len(turns)], batch) else idle + 1
            steps += 1
            progress(steps, run.held_loss)
    if not math.isfinite(run.held_loss):
        raise no_number("the held-out loss of the models' mean")
    found = tuple(map(permutation.compose, permutations, run.found))
    seconds = time.monotonic() - began
    return Polished(found, before, run.held_loss, steps, run.swapped, seconds, steps * run.work)


class _Run:
    """The models as they stand, their mean, and the held-out loss there."""

    def __init__(self, problem: Problem, permutations: Sequence[Permutations]):
        self.problem, self.midpoint = problem, Midpoint(problem)
        fitted, count = problem.fitted, len(problem.models)
        self.weights = [1 / count] * count
        names = self.midpoint.names
        reference, *others = problem.models
        moved = [
            permutation.permuted(model, fitted, perms)
            for model, perms in zip(others, permutations, strict=True)
        ]
        self.models = [self._own(model, names) for model in moved]
        own = self._own(reference, names)
        self.mean = {
            n: sum(
                (w * m[n] for w, m in zip(self.weights[1:], self.models, strict=True)),
                self.weights[0] * own[n],
            )
            for n in names
        }
        self.places = movable(fitted, names)
        self.found = [permutation.identity(fitted.words) for _ in others]
        self.swapped = 0
        self.train, held = held_out(problem.given_data, derive(problem.seed, "held out"))
        cost = self.midpoint.work(next(self.midpoint.batches(held, SAMPLES))[0])
        self.samples = int(min(SAMPLES, max(LEAST, WORK / 16 / cost)))
        self.candidates = int(min(CANDIDATES, max(FEWEST, WORK / (cost * self.samples))))
        least = 4 * LEAST if cost * SAMPLES > 1e12 else 500
        compared = max(least, 2 * self.samples)
        self.held = list(self.midpoint.batches(held, compared))
        passes = GRADIENT + self.candidates + self.candidates.bit_length()  # the last: of many together
        self.work = cost * (self.samples * passes + compared)
        self.held_loss = self._held_losses([{}])[0]

    def _own(self, model: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
        return {n: model[n].detach().to(self.midpoint.device, torch.float32, copy=True) for n in names}

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Batches of a step without end, every epoch in an order of its own."""
        data = self.train.with_batch_size(self.samples) if isinstance(self.train, Data) else self.train
        turn = 0
        while True:
            rng, none = generator(self.problem.seed, f"polishing, order of epoch {turn}"), True
            for number, (inputs, targets) in enumerate(a_pass(data, rng, least=2)):
                none = False
                yield self.midpoint.batch(head(inputs, self.samples), head(targets, self.samples), number)
            if none:
                return
            turn += 1

    def _held_losses(self, changes: Sequence[Mapping[str, Tensor]]) -> list[float]:
        total, samples = [0.0] * len(changes), 0
        for batch in self.held:
            size = size_of(batch[1], batch[0])
            found = self.midpoint.losses(self.mean, changes, batch)
            total = [one + size * loss for one, loss in zip(total, found, strict=True)]
            samples += size
        return [one / samples for one in total]

    def step(self, k: int, word: str, batch: tuple[Any, Any]) -> bool:
        """Swap units of a word in a model if the loss falls by it, here and on held-out samples."""
        model, places = self.models[k], self.places[word]
        loss, gradient = self.midpoint.gradient(self.mean, batch)
        pairs = best(slopes(places, gradient, model), self.candidates)
        losses = self.midpoint.losses(self.mean, [self._changed(k, word, [pair])[0] for pair in pairs], batch)
        falling = sorted((fell, pair) for fell, pair in zip(losses, pairs, strict=True) if fell < loss)
        chosen = apart([pair for _, pair in falling])
        counts = sorted({*(1 << n for n in range(len(chosen).bit_length())), len(chosen)} - {0})
        if not (counts := [n for n in counts if n <= len(chosen)]):
            return False
        tried = [self._changed(k, word, chosen[:count]) for count in counts]
        together = self.midpoint.losses(self.mean, [mean for mean, _ in tried], batch)
        at = min(range(len(counts)), key=together.__getitem__)
        mean, moved = tried[at]
        if together[at] >= loss or not (held := self._held_losses([mean])[0]) < self.held_loss:
            return False
        self.mean |= mean
        model |= moved
        change = {word: order(self.problem.fitted.words[word], chosen[: counts[at]])}
        still = permutation.identity(self.problem.fitted.words)
        self.found[k] = permutation.compose(self.found[k], still | change)
        self.swapped += counts[at]
        self.held_loss = held
        return True

    def _changed(
        self, k: int, word: str, pairs: list[tuple[int, int]]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors of the mean, and of the model, that are others once these units are swapped."""
        model, index = self.models[k], order(self.problem.fitted.words[word], pairs)
        index = index.to(self.midpoint.device)
        moved: dict[str, Tensor] = {}
        for name, dim in self.places[word]:
            moved[name] = moved.get(name, model[name]).index_select(dim, index)
        share = self.weights[k + 1]
        mean = {name: self.mean[name] + share * (tensor - model[name]) for name, tensor in moved.items()}
        return mean, moved


def movable(fitted: FittedSpec, names: list[str]) -> dict[str, list[tuple[str, int]]]:
    """Words whose units are whole slices wherever they appear: tensors and axes of these, by word.

    Words within others, those that others lie within, and the orders of lists stay as the search found them.
    """
    nested = {*fitted.within, *(block.word for block in fitted.within.values())}
    nested |= {its.word for its in fitted.stacks.values()}
    places: dict[str, list[tuple[str, int]]] = {word: [] for word in fitted.words}
    for name in names:
        for dim, axis in enumerate(fitted.tensors.get(name, ())):
            if isinstance(axis, Word) and axis.name in places:
                places[axis.name].append((name, dim))
    return {w: its for w, its in places.items() if its and fitted.words[w] > 1 and w not in nested}


def slopes(
    places: list[tuple[str, int]], gradient: Mapping[str, Tensor], model: Mapping[str, Tensor]
) -> Tensor:
    """The slope of the loss along every entry of a word's permutation, (n, n), in float32."""
    products = []
    for name, dim in places:
        one, other = (t[name].movedim(dim, 0) for t in (gradient, model))
        products.append(one.reshape(len(one), -1) @ other.reshape(len(other), -1).T)
    return reduce(torch.add, products)


def best(slope: Tensor, count: int) -> list[tuple[int, int]]:
    """Up to `count` pairs of units, the steepest fall first; none that would let the loss rise."""
    here = slope.diagonal()
    change = slope + slope.T - here[:, None] - here
    size = len(change)
    once = change.masked_fill(torch.ones_like(change, dtype=torch.bool).tril(), math.inf).flatten()
    falls, places = (part.cpu() for part in once.topk(min(count, size * (size - 1) // 2), largest=False))
    return [divmod(k, size) for fall, k in zip(falls.tolist(), places.tolist(), strict=True) if fall < 0]


def apart(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of the pairs, in their order, that share no unit with an earlier one."""
    taken: set[int] = set()
    found = []
    for pair in pairs:
        if not taken & {*pair}:
            taken |= {*pair}
            found.append(pair)
    return found


def order(size: int, pairs: list[tuple[int, int]]) -> Tensor:
    """The permutation of `size` units that swaps these pairs."""
    found = torch.arange(size)
    for i, j in pairs:
        found[i], found[j] = j, i
    return found
