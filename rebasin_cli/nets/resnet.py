"""Residual networks for ImageNet: resnet18, resnet34, resnet50, resnet101, resnet152.

Four stages of basic (two 3×3 convolutions) or bottleneck (1×1, 3×3, 1×1) blocks with 64, 128, 256 and 512
channels times `width`. Tensors are torchvision's (`layer1.0.conv1`, `downsample.0`, `fc`); networks read
from tensors may spell `shortcut.0`, `shortcut.1` and `linear`, as ports to CIFAR do. A 3×3 stem means such a
port: stride 1 and no max-pooling. The stride of a bottleneck sits on its 3×3 convolution.

He et al. 2015, table 1, arXiv:1512.03385.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import NetworkError, UsageError

DEPTHS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
CHANNELS = (64, 128, 256, 512)
BASIC = ("resnet18", "resnet34")
VARIANTS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")  # as `rebasin list` reads it


@dataclass(frozen=True)
class BlockPlan:
    """Channels in, between the convolutions (basic one, bottleneck two numbers) and out.

    `shortcut` is the kernel size of the convolution beside them, 0 where the input is added as it is.
    """

    inputs: int
    inner: tuple[int, ...]
    outputs: int
    stride: int
    shortcut: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything that makes two of these networks differ."""

    inputs: int
    stem: int
    stem_kernel: int
    stages: tuple[tuple[BlockPlan, ...], ...]
    classes: int
    shortcut: str = "downsample"  # or "shortcut"
    head: str = "fc"  # or "linear"
    head_bias: bool = True


class Block(nn.Module):
    """conv1, bn1, conv2, bn2 and for a bottleneck conv3, bn3, added to the shortcut before the last ReLU."""

    def __init__(self, plan: BlockPlan, shortcut: str):
        super().__init__()
        bottleneck = len(plan.inner) == 2
        channels = (plan.inputs, *plan.inner, plan.outputs)
        self.convolutions = len(channels) - 1
        for i, (inputs, outputs) in enumerate(zip(channels, channels[1:], strict=False), start=1):
            kernel = 1 if bottleneck and i != 2 else 3
            stride = plan.stride if i == self.convolutions - 1 else 1  # basic: the first; bottleneck: the 3×3
            conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", nn.BatchNorm2d(outputs))
        way = nn.Sequential()
        if plan.shortcut:
            size, stride = plan.shortcut, plan.stride
            way.append(nn.Conv2d(plan.inputs, plan.outputs, size, stride, size // 2, bias=False))
            way.append(nn.BatchNorm2d(plan.outputs))
        self.shortcut_name = shortcut
        self.add_module(shortcut, way)

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
        small = plan.stem_kernel <= 3
        kernel, stride = plan.stem_kernel, 1 if small else 2
        self.conv1 = nn.Conv2d(plan.inputs, plan.stem, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(plan.stem)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.stages = [f"layer{s}" for s in range(1, len(plan.stages) + 1)]
        for name, blocks in zip(self.stages, plan.stages, strict=True):
            self.add_module(name, nn.Sequential(*(Block(block, plan.shortcut) for block in blocks)))
        self.head_name = plan.head
        self.add_module(plan.head, nn.Linear(plan.stages[-1][-1].outputs, plan.classes, bias=plan.head_bias))
        self.example_shape: tuple[int, ...] = (
            plan.inputs,
            *((16, 16) if small else (64, 64)),
        )  # two at the end

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.get_submodule(self.head_name)(x.mean(dim=(2, 3)))
        return logits


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
) -> ResNet:
    """A network to train; `width` multiplies all channels.

    Images of less than 64×64 get a 3×3 stem without pooling. Convolutions start from He's normal
    initialisation (fan out). Raises UsageError.
    """
    if depth is not None and f"resnet{depth}" != name:
        raise UsageError(f"{name} has a fixed depth", hint=f"Choose one of {', '.join(VARIANTS)} by name.")
    if norm not in (None, "batch"):
        raise UsageError(f"{name} has no norm {norm!r}", hint="Choose batch, or the net resnet20 for layer.")
    if len(input_shape) != 3:
        raise UsageError(f"{name} reads images (C, H, W), the data has shape {tuple(input_shape)}")
    channels = [round(base * (1.0 if width is None else width)) for base in CHANNELS]
    if min(channels) < 1:
        raise UsageError(f"width {width:g} leaves {name} without channels", hint="Try --width 1.")
    stages, inputs = [], channels[0]
    for s, (count, repeats) in enumerate(zip(channels, DEPTHS[name], strict=True)):
        inner, outputs = ((count,), count) if name in BASIC else ((count, count), 4 * count)
        joined = s > 0 or inputs != outputs
        blocks = [BlockPlan(inputs, inner, outputs, 2 if s else 1, int(joined))]
        blocks += [BlockPlan(outputs, inner, outputs, 1)] * (repeats - 1)
        stages.append(tuple(blocks))
        inputs = outputs
    kernel = 3 if min(input_shape[1:]) < 64 else 7
    network = ResNet(Plan(input_shape[0], channels[0], kernel, tuple(stages), classes))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    network.example_shape = tuple(input_shape)
    return network


_BLOCK = re.compile(r"layer([0-9]{1,9})\.([0-9]{1,9})\.conv1\.weight")


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> ResNet:
    """The network of exactly these tensors: depth, widths, kind of block, stem and spelling are read off.

    Raises NetworkError naming the tensor that is missing.
    """
    try:
        return ResNet(_plan(shapes))
    except (KeyError, IndexError, ValueError) as cause:
        raise NetworkError(f"these tensors are no residual network: {cause}") from cause


def _plan(shapes: Mapping[str, tuple[int, ...]]) -> Plan:
    shortcut = "shortcut" if any(".shortcut." in name for name in shapes) else "downsample"
    head = "linear" if "linear.weight" in shapes else "fc"
    found = sorted((int(m[1]), int(m[2])) for m in map(_BLOCK.fullmatch, shapes) if m)
    stages: dict[int, list[BlockPlan]] = {}
    for s, b in found:
        prefix = f"layer{s}.{b}"
        last = 3 if f"{prefix}.conv3.weight" in shapes else 2
        outputs = [shapes[f"{prefix}.conv{i}.weight"][0] for i in range(1, last + 1)]
        way = shapes.get(f"{prefix}.{shortcut}.0.weight", (0, 0, 0))[2]
        stride = 2 if s > 1 and b == 0 else 1
        block = BlockPlan(shapes[f"{prefix}.conv1.weight"][1], tuple(outputs[:-1]), outputs[-1], stride, way)
        stages.setdefault(s, []).append(block)
    if not stages:
        raise KeyError("layer1.0.conv1.weight")
    stem, inputs, kernel, _ = shapes["conv1.weight"]
    classes = shapes[f"{head}.weight"][0]
    blocks = tuple(map(tuple, stages.values()))
    return Plan(inputs, stem, kernel, blocks, classes, shortcut, head, f"{head}.bias" in shapes)
