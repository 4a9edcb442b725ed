"""A stack trained: every network on samples of its own, in an order of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ...learning.loop import Learner, Made, learn
from ...runtime import optimizers
from ..engine.bench import Bench
from . import stacks
from .samples import Samples
from .samples import layers as sizes
from .stacks import Stack

OPTIMIZERS = ("adam", "sgd")


def trained(
    stack: Stack,
    inputs: Tensor,
    targets: Tensor,
    *,
    steps: int,
    generator: torch.Generator,
    batch: int = 64,
    rate: float = 1e-3,
    optimizer: str = "adam",
    momentum: float = 0.0,
    chosen: Tensor | None = None,
    keep: Collection[int] = (),
    until: float = 0.0,
) -> dict[int, Stack]:
    """The stack after the steps in `keep` (0 is how it was) and after the last one.

    `until` ends it, if that comes before `steps`, behind the first pass in which the mean loss of every
    network was below it. `chosen` (N, samples) says which samples each network trains on, all by default. A
    pass takes its samples once, in an order drawn anew; what does not fill a batch in its end is left out.
    The rate is constant. Raises NetworkError where a loss is no number.
    """
    count = len(stack[0][0])
    chosen = torch.arange(len(inputs)).expand(count, -1) if chosen is None else chosen
    batch = min(batch, chosen.shape[1])
    a_pass = chosen.shape[1] // batch

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = chosen.gather(1, torch.rand(chosen.shape, generator=generator).argsort(1))
        for number in range(a_pass):
            picked = order[:, number * batch :][:, :batch]
            yield inputs[picked], targets[picked]

    training = _Training(stack, optimizer, rate, momentum, steps, a_pass, until, keep)
    learn(training, Made(batches))
    return training.kept | {training.done: _copy(training.layers)}


class _Training(Learner):
    """All networks at once; it ends with the steps, or where all means of a pass are below `until`."""

    every = 100

    def __init__(
        self,
        stack: Stack,
        optimizer: str,
        rate: float,
        momentum: float,
        steps: int,
        a_pass: int,
        until: float,
        keep: Collection[int],
    ):
        self.layers = [(w.requires_grad_(), b.requires_grad_()) for w, b in _copy(stack)]
        leaves = [tensor for layer in self.layers for tensor in layer]
        adam = optimizer == "adam"
        kind, options = (torch.optim.Adam, {}) if adam else (torch.optim.SGD, {"momentum": momentum})
        self.optimizer = optimizers.make(kind, leaves, lr=rate, **options)
        self.rate, self.steps, self.a_pass, self.until, self.keep = rate, steps, a_pass, until, keep
        self.arrived = False
        self.kept = {0: _copy(stack)} if 0 in keep else {}

    def over(self) -> bool:
        return self.arrived or self.done == self.steps

    def within(self, epoch: int) -> AbstractContextManager[None]:
        self.passed = torch.zeros(len(self.layers[0][0]))
        return nullcontext()

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        losses = stacks.cross_entropies(stacks.outputs(self.layers, inputs), targets)
        self.passed += losses.detach()
        self.optimizer.zero_grad(set_to_none=True)
        return losses.sum()

    def move(self) -> None:
        self.optimizer.step()

    def tell(self, loss: float) -> None:
        if self.done in self.keep:
            self.kept[self.done] = _copy(self.layers)

    def after(self, step: int, mean: float) -> None:
        if self.until and step == self.a_pass:
            self.arrived = bool((self.passed < self.until * self.a_pass).all())


def steps_of(epochs: int, samples: int, batch: int) -> int:
    """The steps of so many passes, one at least."""
    return max(1, epochs * (samples // min(batch, samples)))


def pairs(
    count: int,
    layers: Sequence[int],
    data: Samples,
    *,
    steps: int,
    generator: torch.Generator,
    init: str = "torch",
    **how: Any,
) -> dict[int, tuple[Stack, Stack]]:
    """Both ends of `count` pairs, no two of which share one, after the steps that `trained` keeps."""
    start = stacks.fresh(2 * count, layers, generator, init)
    kept = trained(start, *data, steps=steps, generator=generator, **how)
    return {step: stacks.halved(stack) for step, stack in kept.items()}


def ends(bench: Bench, data: Samples, classes: int) -> tuple[Stack, Stack]:
    """Both ends of an experiment's pairs, trained as its parameters say."""
    p = bench.p
    layers, steps = sizes(data, p.width, p.depth, classes), steps_of(p.epochs, len(data.targets), p.batch)
    how = {"steps": steps, "batch": p.batch, "rate": p.rate, "generator": bench.generator("networks")}
    return pairs(p.pairs, layers, data, **how)[steps]


def _copy(layers: Stack) -> Stack:
    return [(weight.detach().clone(), bias.detach().clone()) for weight, bias in layers]
