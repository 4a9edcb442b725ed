"""Stacks: made, run, measured, taken apart and put together again.

A layer's weights are (N, outputs, inputs), or (N, outputs, inputs, 3, 3) of a convolution, which is followed
by a maximum of every 2×2 pixels; convolutions come before linear layers. ReLU is between layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Stack = list[tuple[Tensor, Tensor]]
INITS = ("kaiming", "torch")
SLAB = 1 << 23  # numbers of one layer's outputs held at a time


def fresh(count: int, sizes: Sequence[int], generator: torch.Generator, init: str = "torch") -> Stack:
    """`count` networks with linear layers of these sizes, inputs and classes included."""
    shapes = [(outputs, inputs) for inputs, outputs in zip(sizes, sizes[1:], strict=False)]
    return of_shapes(count, shapes, generator, init)


def of_shapes(
    count: int, shapes: Sequence[Sequence[int]], generator: torch.Generator, init: str = "torch"
) -> Stack:
    """`count` networks whose layers have weights of these shapes, each without its N.

    "kaiming" is He's normal with biases of 0; "torch" is what torch.nn.Linear and Conv2d do.
    """
    made = []
    for shape in shapes:
        inputs = math.prod(shape[1:])
        if init == "kaiming":
            weight = torch.randn(count, *shape, generator=generator) * math.sqrt(2 / inputs)
            bias = torch.zeros(count, shape[0])
        else:
            bound = 1 / math.sqrt(inputs)
            weight = (2 * torch.rand(count, *shape, generator=generator) - 1) * bound
            bias = (2 * torch.rand(count, shape[0], generator=generator) - 1) * bound
        made.append((weight, bias))
    return made


def outputs(stack: Stack, inputs: Tensor) -> Tensor:
    """Logits (N, samples, classes) of inputs (samples, d) for all, or (N, samples, d) of each its own.

    In front of convolutions a sample is (channels, height, width) in place of d.
    """
    x = inputs.expand(len(stack[0][0]), *inputs.shape[-_axes(stack) :])
    for number, (weight, bias) in enumerate(stack):
        x = x.relu() if number else x
        if weight.dim() > 3:
            x = _convolved(x, weight, bias)
        else:
            x = torch.baddbmm(bias[:, None], x.flatten(2), weight.mT)
    return x


def _axes(stack: Stack) -> int:
    """The axes of samples: theirs, and those of one."""
    return stack[0][0].dim() - 1


def _convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    each = zip(x, weight, bias, strict=True)  # as fast as one of groups on CPUs
    return torch.stack([F.max_pool2d(F.conv2d(one, w, b, padding=1), 2) for one, w, b in each])


@dataclass(frozen=True)
class Measured:
    """Of every network: mean loss in nats and accuracy 0–1, float64 (N,)."""

    loss: Tensor
    accuracy: Tensor


def measured(stack: Stack, inputs: Tensor, targets: Tensor) -> Measured:
    """Loss and accuracy of every network, in slabs of bounded memory."""
    pixels = math.prod(inputs.shape[-2:]) if _axes(stack) > 2 else 1
    numbers = max(weight.shape[1] for weight, _ in stack) * pixels * len(inputs)
    networks, at_once = len(stack[0][0]), max(1, SLAB // numbers)
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


def calibration(logits: Tensor, targets: Tensor, bins: int) -> list[dict[str, Any]]:
    """Of every network (N, samples, classes) the expected calibration error and its bins' figures."""
    from ...networks.calibration import calibrated

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
    found: dict[str, Tensor] = {}
    for name, (weight, bias) in zip(names, stack, strict=True):
        found |= {f"{name}.weight": weight[number], f"{name}.bias": bias[number]}
    return found


def stacked(models: Sequence[dict[str, Tensor]]) -> Stack:
    """The reverse of `tensors`, of several."""
    names = [name.removesuffix(".weight") for name in models[0] if name.endswith(".weight")]
    return [
        (torch.stack([m[f"{n}.weight"] for m in models]), torch.stack([m[f"{n}.bias"] for m in models]))
        for n in names
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
