"""Stacks: made, run, measured, taken apart and put together again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Stack = list[tuple[Tensor, Tensor]]
INITS = ("kaiming", "torch")
SLAB = 1 << 23  # numbers of one layer's outputs held at a time


def fresh(count: int, sizes: Sequence[int], generator: torch.Generator, init: str = "torch") -> Stack:
    """`count` networks with layers of these sizes, inputs and classes included.

    "kaiming" is He's normal with biases of 0; "torch" is what torch.nn.Linear does.
    """
    made = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        if init == "kaiming":
            weight = torch.randn(count, outputs, inputs, generator=generator) * math.sqrt(2 / inputs)
            bias = torch.zeros(count, outputs)
        else:
            bound = 1 / math.sqrt(inputs)
            weight = (2 * torch.rand(count, outputs, inputs, generator=generator) - 1) * bound
            bias = (2 * torch.rand(count, outputs, generator=generator) - 1) * bound
        made.append((weight, bias))
    return made


def outputs(stack: Stack, inputs: Tensor) -> Tensor:
    """Logits (N, samples, classes) of inputs (samples, d) for all, or (N, samples, d) of each its own."""
    x = inputs.expand(len(stack[0][0]), *inputs.shape[-2:])
    for number, (weight, bias) in enumerate(stack):
        x = torch.baddbmm(bias[:, None], x.relu() if number else x, weight.mT)
    return x


@dataclass(frozen=True)
class Measured:
    """Of every network: mean loss in nats and accuracy 0–1, float64 (N,)."""

    loss: Tensor
    accuracy: Tensor


def measured(stack: Stack, inputs: Tensor, targets: Tensor) -> Measured:
    """Loss and accuracy of every network, in slabs of bounded memory."""
    wide = max(weight.shape[1] for weight, _ in stack)
    networks, at_once = len(stack[0][0]), max(1, SLAB // (wide * len(inputs)))
    losses, right = [], []
    with torch.inference_mode():
        for first in range(0, networks, at_once):
            logits = outputs(part(stack, slice(first, first + at_once)), inputs).double()
            losses.append(cross_entropies(logits, targets))
            right.append((logits.argmax(2) == targets).double().mean(1))
    return Measured(torch.cat(losses).clone(), torch.cat(right).clone())


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of every network (N,); targets (samples,), or (N, samples) of each its own."""
    targets = targets.expand(logits.shape[:2])
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(logits.shape[:2]).mean(1)


def calibration(logits: Tensor, targets: Tensor, bins: int) -> list[dict[str, list[float] | float]]:
    """Of every network (N, samples, classes) the expected calibration error and its bins' figures."""
    from ...networks.evaluation import calibrated

    return [calibrated(each, targets, bins) for each in logits]


def part(stack: Stack, index: slice | Tensor) -> Stack:
    return [(weight[index], bias[index]) for weight, bias in stack]


def halved(stack: Stack) -> tuple[Stack, Stack]:
    """The first half of the networks, and the second."""
    middle = len(stack[0][0]) // 2
    return part(stack, slice(0, middle)), part(stack, slice(middle, None))


def joined(stacks: Sequence[Stack]) -> Stack:
    return [
        (torch.cat([weight for weight, _ in layers]), torch.cat([bias for _, bias in layers]))
        for layers in zip(*stacks, strict=True)
    ]


def mixed(one: Stack, other: Stack, share: float) -> Stack:
    """(1 - share)·one + share·other."""
    return [
        (torch.lerp(w, v, share), torch.lerp(b, c, share)) for (w, b), (v, c) in zip(one, other, strict=True)
    ]


def mean(stack: Stack) -> Stack:
    """All networks' mean, a stack of one."""
    return [(weight.mean(0, keepdim=True), bias.mean(0, keepdim=True)) for weight, bias in stack]


def tensors(stack: Stack, number: int) -> dict[str, Tensor]:
    """One network under the names of the built-in mlp."""
    names = [f"layers.{k}" for k in range(len(stack) - 1)] + ["head"]
    found = {}
    for name, (weight, bias) in zip(names, stack, strict=True):
        found |= {f"{name}.weight": weight[number], f"{name}.bias": bias[number]}
    return found


def stacked(models: Sequence[dict[str, Tensor]]) -> Stack:
    """The reverse of `tensors`, of several."""
    names = [name.removesuffix(".weight") for name in models[0] if name.endswith(".weight")]
    return [
        tuple(torch.stack([m[f"{n}.{kind}"] for m in models]) for kind in ("weight", "bias")) for n in names
    ]


def path(ones: Stack, others: Stack, inputs: Tensor, targets: Tensor, points: int) -> Measured:
    """Losses and accuracies on the straight lines, (pairs, points), both ends included."""
    found = [measured(mixed(ones, others, float(t)), inputs, targets) for t in torch.linspace(0, 1, points)]
    return Measured(torch.stack([m.loss for m in found], 1), torch.stack([m.accuracy for m in found], 1))


def heights(values: Tensor) -> tuple[Tensor, Tensor]:
    """The barriers of losses on lines (pairs, points): over the mean of the ends, and over the chord."""
    share = torch.linspace(0, 1, values.shape[1], dtype=values.dtype)
    first, last = values[:, :1], values[:, -1:]
    chord = (values - (1 - share) * first - share * last).amax(1)
    return values.amax(1) - (first + last)[:, 0] / 2, chord
