"""What nets of convolutions share: widths, first weights, and the residual networks of both kinds.

A residual network has stages `layer1`, `layer2`, … of blocks: `conv1`, `bn1`, `conv2`, `bn2` and, of a
bottleneck, `conv3`, `bn3`, beside a shortcut. Before them are `conv1` and `bn1`, after them the head.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UsageError
from ..types import Shapes


def widened(name: str, counts: Sequence[int], width: float | None) -> list[int]:
    """Numbers of channels times `width`. Raises UsageError where one is left without any."""
    channels = [round(count * (1.0 if width is None else width)) for count in counts]
    if min(channels) < 1:
        raise UsageError(f"width {width:g} leaves {name} without channels", hint="Try --width 1.")
    return channels


Net = TypeVar("Net", bound=nn.Module)


def begun(network: Net, input_shape: Sequence[int]) -> Net:
    """The network for inputs of this shape, convolutions from He's normal initialisation (fan out)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    cast(Any, network).example_shape = tuple(input_shape)  # a module's type knows no such attribute
    return network


class ChannelNorm(nn.Module):
    """LayerNorm over the channels at each position of a (N, C, H, W) map; weight and bias of shape (C,)."""

    def __init__(self, channels: int, eps: float = 1e-5):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, self.eps)
        return normed.permute(0, 3, 1, 2)


class PadJoin(nn.Module):
    """Option A: every `stride`-th position, and zero channels half before and half after."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.before, self.after, self.stride = before, after, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


@dataclass(frozen=True)
class BlockPlan:
    """Channels in, between the convolutions (basic one number, bottleneck two) and out; how it is joined.

    `join` is "identity", "pad", or the kernel size of a convolution, with `join_norm` after it or not.
    """

    inputs: int
    inner: tuple[int, ...]
    outputs: int
    stride: int
    join: str | int = "identity"
    join_norm: bool = True


@dataclass(frozen=True)
class Plan:
    """Everything that makes two residual networks differ.

    A first convolution of a `kernel` above 3×3 has stride 2, and a maximum after it. `side` is that of images
    by which a network is shown.
    """

    inputs: int
    stem: int
    kernel: int
    stages: tuple[tuple[BlockPlan, ...], ...]
    classes: int
    side: int
    norm: str = "batch"  # "batch" | "layer" | "none"
    shortcut: str = "downsample"  # or "shortcut"
    head: str = "fc"  # or "linear"
    biased: frozenset[str] = frozenset()  # the convolutions that have a bias
    head_bias: bool = True


def stages(
    channels: Sequence[tuple[tuple[int, ...], int]], repeats: Sequence[int], join: str | int
) -> tuple[tuple[BlockPlan, ...], ...]:
    """Stages with (inner, outer) channels, and so many blocks each; those after the first halve the side.

    The first stage reads as many channels as its first convolution has. `join` is that of a first block whose
    shape changes.
    """
    found, inputs = [], channels[0][0][0]
    for s, ((inner, outputs), count) in enumerate(zip(channels, repeats, strict=True)):
        way = join if s or inputs != outputs else "identity"
        first = BlockPlan(inputs, inner, outputs, 2 if s else 1, way)
        found.append((first, *[BlockPlan(outputs, inner, outputs, 1)] * (count - 1)))
        inputs = outputs
    return tuple(found)


def blocks_of(shapes: Shapes) -> list[tuple[int, int, int]]:
    """Of every block that these tensors have: the numbers of its stage and its own, and its stride."""
    found = re.compile(r"layer([0-9]{1,9})\.([0-9]{1,9})\.conv1\.weight")
    numbers = sorted((int(m[1]), int(m[2])) for m in map(found.fullmatch, shapes) if m)
    return [(s, b, 2 if s > 1 and b == 0 else 1) for s, b in numbers]


def spelled(shapes: Shapes) -> tuple[str, str]:
    """How these tensors call the shortcut and the head."""
    shortcut = "shortcut" if any(".shortcut." in name for name in shapes) else "downsample"
    return shortcut, "linear" if "linear.weight" in shapes else "fc"


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    return nn.BatchNorm2d(channels) if kind == "batch" else ChannelNorm(channels)


class Block(nn.Module):
    """Convolutions with their norms, added to the shortcut before the last ReLU."""

    def __init__(self, plan: BlockPlan, net: Plan, prefix: str):
        super().__init__()

        def conv(name: str, inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
            bias = f"{prefix}.{name}" in net.biased
            return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)

        channels = (plan.inputs, *plan.inner, plan.outputs)
        self.convolutions = len(channels) - 1
        for i, (inputs, outputs) in enumerate(zip(channels, channels[1:], strict=False), start=1):
            kernel = 1 if len(plan.inner) == 2 and i != 2 else 3
            stride = plan.stride if i == self.convolutions - 1 else 1  # basic: the first; bottleneck: the 3×3
            self.add_module(f"conv{i}", conv(f"conv{i}", inputs, outputs, kernel, stride))
            self.add_module(f"bn{i}", _norm(net.norm, outputs))
        shortcut = nn.Sequential()
        if plan.join == "pad":
            missing = plan.outputs - plan.inputs
            shortcut.append(PadJoin(missing // 2, missing - missing // 2, plan.stride))
        elif isinstance(plan.join, int):
            shortcut.append(conv(f"{net.shortcut}.0", plan.inputs, plan.outputs, plan.join, plan.stride))
            if plan.join_norm:
                shortcut.append(_norm(net.norm, plan.outputs))
        self.shortcut_name = net.shortcut
        self.add_module(net.shortcut, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        inner = x
        for i in range(1, self.convolutions + 1):
            inner = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(inner))
            if i < self.convolutions:
                inner = torch.relu(inner)
        return torch.relu(inner + self.get_submodule(self.shortcut_name)(x))


class ResNet(nn.Module):
    """Images (N, C, H, W) to logits (N, classes); built from a `Plan`."""

    def __init__(self, plan: Plan):
        super().__init__()
        large = plan.kernel > 3
        self.conv1 = nn.Conv2d(
            plan.inputs, plan.stem, plan.kernel, 1 + large, plan.kernel // 2, bias="conv1" in plan.biased
        )
        self.bn1 = _norm(plan.norm, plan.stem)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        self.stages = [f"layer{s}" for s in range(1, len(plan.stages) + 1)]
        for name, blocks in zip(self.stages, plan.stages, strict=True):
            stage = (Block(block, plan, f"{name}.{i}") for i, block in enumerate(blocks))
            self.add_module(name, nn.Sequential(*stage))
        self.head_name = plan.head
        self.add_module(plan.head, nn.Linear(plan.stages[-1][-1].outputs, plan.classes, bias=plan.head_bias))
        self.example_shape: tuple[int, ...] = (plan.inputs, plan.side, plan.side)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.get_submodule(self.head_name)(x.mean(dim=(2, 3)))
        return logits
