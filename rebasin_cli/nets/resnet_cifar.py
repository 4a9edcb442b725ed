"""Residual networks for 32×32 images: resnet20, resnet32, resnet44, resnet56.

Three stages of `n` blocks with 16, 32 and 64 channels (times `width`), 6n + 2 layers deep. Tensor names
are torchvision's (`layer1.0.conv1`, `downsample.0`, `fc`); networks read from tensors may instead spell
`shortcut.0`, `shortcut.1` and `linear`. Where the shape changes, the stages are joined by a 1×1 or 3×3
convolution or, without any parameters, by zero channels (option A).

He et al. 2016, §4.2, arXiv:1512.03385; wider and with LayerNorm as in Git Re-Basin, arXiv:2209.04836, A.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import NetworkError, UsageError

VARIANTS = ("resnet20", "resnet32", "resnet44", "resnet56")
JOINS = ("conv1x1", "conv3x3", "pad")


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
    """One basic block: channels in, inside and out, its stride, and how its shortcut is made.

    `join` is "identity", "pad", or the kernel size of a convolution, with `join_norm` after it or not.
    """

    inputs: int
    inner: int
    outputs: int
    stride: int
    join: str | int = "identity"
    join_norm: bool = True


@dataclass(frozen=True)
class Plan:
    """Everything that makes two of these networks differ."""

    stages: tuple[tuple[BlockPlan, ...], ...]
    inputs: int
    stem: int
    classes: int
    norm: str = "batch"  # "batch" | "layer" | "none"
    shortcut: str = "downsample"  # or "shortcut"
    head: str = "fc"  # or "linear"
    biased: frozenset[str] = frozenset()  # the convolutions that have a bias
    head_bias: bool = True


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    return nn.BatchNorm2d(channels) if kind == "batch" else ChannelNorm(channels)


class Block(nn.Module):
    def __init__(self, plan: BlockPlan, net: Plan, prefix: str):
        super().__init__()

        def conv(name: str, inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
            bias = f"{prefix}.{name}" in net.biased
            return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)

        self.conv1 = conv("conv1", plan.inputs, plan.inner, 3, plan.stride)
        self.bn1 = _norm(net.norm, plan.inner)
        self.conv2 = conv("conv2", plan.inner, plan.outputs, 3, 1)
        self.bn2 = _norm(net.norm, plan.outputs)
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
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.get_submodule(self.shortcut_name)(x))


class ResNet(nn.Module):
    """Images (N, C, H, W) to logits (N, classes); built from a `Plan`."""

    def __init__(self, plan: Plan):
        super().__init__()
        self.conv1 = nn.Conv2d(plan.inputs, plan.stem, 3, 1, 1, bias="conv1" in plan.biased)
        self.bn1 = _norm(plan.norm, plan.stem)
        for s, blocks in enumerate(plan.stages, start=1):
            stage = nn.Sequential(*(Block(b, plan, f"layer{s}.{i}") for i, b in enumerate(blocks)))
            self.add_module(f"layer{s}", stage)
        self.stages = [f"layer{s}" for s in range(1, len(plan.stages) + 1)]
        self.head_name = plan.head
        self.add_module(plan.head, nn.Linear(plan.stages[-1][-1].outputs, plan.classes, bias=plan.head_bias))
        side = 2 ** len(plan.stages)  # two pixels in the last stage: each kernel sees more than its middle
        self.example_shape: tuple[int, ...] = (plan.inputs, side, side)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
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
    join: str = "conv1x1",
) -> ResNet:
    """A network to train. `width` multiplies the 16, 32 and 64 channels; `join` is one of JOINS.

    Convolutions start from He's normal initialisation (fan out). Raises UsageError.
    """
    if depth is not None and f"resnet{depth}" != name:
        raise UsageError(f"{name} has a fixed depth", hint=f"Choose one of {', '.join(VARIANTS)} by name.")
    if norm not in (None, "batch", "layer"):
        raise UsageError(f"{name} without a norm does not train", hint="Choose --norm batch or layer.")
    if join not in JOINS:
        raise UsageError(f"unknown join {join!r}", hint=f"Choose one of {', '.join(JOINS)}.")
    if len(input_shape) != 3:
        raise UsageError(f"{name} reads images (C, H, W), the data has shape {tuple(input_shape)}")
    multiplier = 1.0 if width is None else width
    channels = [round(base * multiplier) for base in (16, 32, 64)]
    if min(channels) < 1:
        raise UsageError(f"width {width:g} leaves {name} without channels", hint="Try --width 1.")
    repeats = (int(name.removeprefix("resnet")) - 2) // 6
    ways: dict[str, str | int] = {"conv1x1": 1, "conv3x3": 3, "pad": "pad"}
    stages, inputs = [], channels[0]
    for s, outputs in enumerate(channels):
        first = (2, ways[join]) if s else (1, "identity")
        blocks = [BlockPlan(inputs, outputs, outputs, *first)]
        blocks += [BlockPlan(outputs, outputs, outputs, 1)] * (repeats - 1)
        stages.append(tuple(blocks))
        inputs = outputs
    network = ResNet(Plan(tuple(stages), input_shape[0], channels[0], classes, norm or "batch"))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    network.example_shape = tuple(input_shape)
    return network


_BLOCK = re.compile(r"layer([0-9]{1,9})\.([0-9]{1,9})\.conv1\.weight")


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> ResNet:
    """The network of exactly these tensors: depth, widths, norm, joins, biases and spelling are read off.

    Raises NetworkError naming the tensor that is missing or that does not fit.
    """
    head = "linear" if "linear.weight" in shapes else "fc"
    shortcut = "shortcut" if any(".shortcut." in name for name in shapes) else "downsample"
    stages: dict[int, list[BlockPlan]] = {}
    for s, b in sorted(tuple(map(int, m.groups())) for m in map(_BLOCK.fullmatch, shapes) if m):
        block = _block(shapes, f"layer{s}.{b}", shortcut, stride=2 if s > 1 and b == 0 else 1)
        stages.setdefault(s, []).append(block)
    if not stages:
        raise NetworkError(_NO, hint="Expected layer1.0.conv1.weight, layer1.0.conv2.weight, …")
    stem, inputs, kernel, _ = _shape(shapes, "conv1.weight", 4)
    if kernel != 3:
        raise NetworkError(f"{_NO}: conv1.weight is {kernel}×{kernel}, expected 3×3")
    norm = "none" if "bn1.weight" not in shapes else "batch" if "bn1.running_mean" in shapes else "layer"
    convolutions = {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 4}
    plan = Plan(
        stages=tuple(map(tuple, stages.values())),
        inputs=inputs,
        stem=stem,
        classes=_shape(shapes, f"{head}.weight", 2)[0],
        norm=norm,
        shortcut=shortcut,
        head=head,
        biased=frozenset(name for name in convolutions if f"{name}.bias" in shapes),
        head_bias=f"{head}.bias" in shapes,
    )
    return ResNet(plan)


_NO = "these tensors are no residual network for small images"


def _block(shapes: Mapping[str, tuple[int, ...]], prefix: str, shortcut: str, stride: int) -> BlockPlan:
    inner, inputs, *_ = _shape(shapes, f"{prefix}.conv1.weight", 4)
    outputs = _shape(shapes, f"{prefix}.conv2.weight", 4)[0]
    join: str | int = "identity"
    if (tensor := f"{prefix}.{shortcut}.0.weight") in shapes:
        join = _shape(shapes, tensor, 4)[2]
    elif stride != 1 or inputs != outputs:
        join = "pad"
        if inputs > outputs:
            raise NetworkError(f"{_NO}: {prefix} goes from {inputs} to {outputs} channels without {tensor}")
    return BlockPlan(inputs, inner, outputs, stride, join, f"{prefix}.{shortcut}.1.weight" in shapes)


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str, rank: int) -> tuple[int, ...]:
    if name not in shapes:
        raise NetworkError(f"{_NO}: {name} is missing")
    if len(shapes[name]) != rank:
        raise NetworkError(f"{_NO}: {name} has shape {tuple(shapes[name])}, expected {rank} axes")
    return tuple(shapes[name])
