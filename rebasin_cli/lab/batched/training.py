"""A stack trained: every network on samples of its own, in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import NetworkError
from . import stacks
from .samples import Samples
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
    progress: Callable[[int], None] = lambda step: None,
) -> dict[int, Stack]:
    """The stack after the steps in `keep` (0 is how it was) and after the last one.

    `until` ends it, if that comes before `steps`, behind the first pass in which the mean loss of every
    network was below it. `chosen` (N, samples) says which samples each network trains on, all by default. A
    pass takes its samples once, in an order drawn anew; what does not fill a batch in its end is left out.
    The rate is constant. Raises NetworkError where a loss is no number.
    """
    layers = [(w.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()) for w, b in stack]
    leaves = [tensor for layer in layers for tensor in layer]
    kind = torch.optim.Adam(leaves, rate) if optimizer == "adam" else torch.optim.SGD(leaves, rate, momentum)
    count = len(leaves[0])
    chosen = torch.arange(len(inputs)).expand(count, -1) if chosen is None else chosen
    batch = min(batch, chosen.shape[1])
    a_pass = chosen.shape[1] // batch
    kept = {0: _copy(layers)} if 0 in keep else {}
    passed = torch.zeros(count)
    for step in range(steps):
        if step % a_pass == 0:
            if step and until and bool((passed < until * a_pass).all()):
                return kept | {step: _copy(layers)}
            passed = torch.zeros(count)
            order = chosen.gather(1, torch.rand(chosen.shape, generator=generator).argsort(1))
        picked = order[:, step % a_pass * batch :][:, :batch]
        losses = stacks.cross_entropies(stacks.outputs(layers, inputs[picked]), targets[picked])
        kind.zero_grad(set_to_none=True)
        losses.sum().backward()
        kind.step()
        passed += losses.detach()
        if step + 1 in keep or step + 1 == steps:
            kept[step + 1] = _copy(layers)
        if step % 100 == 99 or step + 1 == steps:
            progress(step + 1)
            if not bool(losses.isfinite().all()):
                raise NetworkError(
                    f"training diverged: a loss is no number by step {step + 1}",
                    hint=f"Try a tenth of the learning rate: {rate / 10:g}",
                )
    return kept


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


def _copy(layers: Stack) -> Stack:
    return [(weight.detach().clone(), bias.detach().clone()) for weight, bias in layers]
