"""A stack trained: every network on samples of its own, in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from ...errors import NetworkError
from . import stacks
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
    progress: Callable[[int], None] = lambda step: None,
) -> dict[int, Stack]:
    """The stack after the steps in `keep` (0 is how it was) and after the last one.

    `chosen` (N, samples) says which samples each network trains on, all by default. A pass takes its samples
    once, in an order drawn anew; what does not fill a batch in its end is left out. The rate is constant.
    Raises NetworkError where a loss is no number.
    """
    layers = [(w.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()) for w, b in stack]
    leaves = [tensor for layer in layers for tensor in layer]
    kind = torch.optim.Adam(leaves, rate) if optimizer == "adam" else torch.optim.SGD(leaves, rate, momentum)
    count = len(leaves[0])
    chosen = torch.arange(len(inputs)).expand(count, -1) if chosen is None else chosen
    batch = min(batch, chosen.shape[1])
    a_pass = chosen.shape[1] // batch
    kept = {0: _copy(layers)} if 0 in keep else {}
    for step in range(steps):
        if step % a_pass == 0:
            order = chosen.gather(1, torch.rand(chosen.shape, generator=generator).argsort(1))
        picked = order[:, step % a_pass * batch :][:, :batch]
        losses = stacks.cross_entropies(stacks.outputs(layers, inputs[picked]), targets[picked])
        kind.zero_grad(set_to_none=True)
        losses.sum().backward()
        kind.step()
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


def _copy(layers: Stack) -> Stack:
    return [(weight.detach().clone(), bias.detach().clone()) for weight, bias in layers]
