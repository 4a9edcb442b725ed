"""VGG: vgg11, vgg13, vgg16 and vgg19, plain or with BatchNorm (`vgg11_bn`, …).

A chain of 3×3 convolutions with ReLU, halved by max-pooling, then one to three linear layers. Tensors are
torchvision's `features.N` and `classifier.N`; N counts ReLU, pooling and dropout too, so the gaps in N tell
where those are. For images of 32×32 the usual small form has a single linear layer after the last pooling.

Simonyan and Zisserman 2014, table 1 (A, B, D, E), arXiv:1409.1556.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import NetworkError, UsageError
from ._convolutional import begun, widened

# Convolutions before each of the five poolings, with 64, 128, 256, 512 and 512 channels.
DEPTHS = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
CHANNELS = (64, 128, 256, 512, 512)
# Spelt out, as `rebasin list` reads it.
VARIANTS = ("vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn")


@dataclass(frozen=True)
class Convolution:
    outputs: int
    kernel: int = 3
    bias: bool = True
    norm: bool = False
    pool: bool = False  # max-pooling after it


@dataclass(frozen=True)
class Linear:
    outputs: int
    bias: bool = True
    dropouts: int = 0  # modules without tensors between this layer and the one before, ReLU not counted


@dataclass(frozen=True)
class Plan:
    """Everything that makes two of these networks differ."""

    inputs: int
    convolutions: tuple[Convolution, ...]
    side: int  # the feature map is averaged to side × side before it is flattened
    linears: tuple[Linear, ...]
    bare_head: bool = False  # the only linear layer is `classifier`, not `classifier.0`


class VGG(nn.Module):
    """Images (N, C, H, W) to logits (N, classes); built from a `Plan`."""

    def __init__(self, plan: Plan):
        super().__init__()
        self.features = nn.Sequential()
        channels = plan.inputs
        for conv in plan.convolutions:
            self.features.append(
                nn.Conv2d(channels, conv.outputs, conv.kernel, padding=conv.kernel // 2, bias=conv.bias)
            )
            channels = conv.outputs
            if conv.norm:
                self.features.append(nn.BatchNorm2d(channels))
            self.features.append(nn.ReLU())
            if conv.pool:
                self.features.append(nn.MaxPool2d(2))
        self.avgpool = nn.AdaptiveAvgPool2d(plan.side)
        self.classifier: nn.Module = nn.Sequential()
        width = channels * plan.side**2
        for position, linear in enumerate(plan.linears):
            if position:
                self.classifier.append(nn.ReLU())
            self.classifier.extend(nn.Dropout() for _ in range(linear.dropouts))
            self.classifier.append(nn.Linear(width, linear.outputs, bias=linear.bias))
            width = linear.outputs
        if plan.bare_head:
            (self.classifier,) = self.classifier
        # The map must reach the average with more than one value, or a wrongly flattened axis would not show.
        halvings = sum(conv.pool for conv in plan.convolutions)
        smallest = 2**halvings * (1 if plan.side == 1 else 2)
        self.example_shape: tuple[int, ...] = (plan.inputs, smallest, smallest)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return logits


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
) -> VGG:
    """A network to train. `width` multiplies channels and hidden units; `norm` is "none" or "batch".

    Images of less than 64×64 get the small form, one linear layer; others torchvision's three. Weights
    start from He's normal initialisation (fan out). Raises UsageError.
    """
    base = name.removesuffix("_bn")
    if depth is not None and f"vgg{depth}" != base:
        raise UsageError(f"{name} has a fixed depth", hint=f"Choose one of {', '.join(VARIANTS)} by name.")
    if norm not in (None, "none", "batch") or (norm == "none" and name != base):
        raise UsageError(f"{name} has no norm {norm!r}", hint="Choose batch or none; vgg…_bn means batch.")
    if len(input_shape) != 3 or min(input_shape[1:]) < 32:
        raise UsageError(f"{name} reads images (C, H, W) of 32×32 or more, not {tuple(input_shape)}")
    channels = widened(name, CHANNELS, width)
    hidden = round(4096 * (1.0 if width is None else width))
    normed = norm == "batch" or name != base
    convolutions = [
        Convolution(outputs, norm=normed, pool=last)
        for outputs, count in zip(channels, DEPTHS[base], strict=True)
        for last in [False] * (count - 1) + [True]
    ]
    small = min(input_shape[1:]) < 64
    linears = [Linear(classes)]
    if not small:
        linears = [Linear(hidden), Linear(hidden, dropouts=1), Linear(classes, dropouts=1)]
    plan = Plan(input_shape[0], tuple(convolutions), 1 if small else 7, tuple(linears))
    network = begun(VGG(plan), input_shape)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return network


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> VGG:
    """The network of exactly these tensors: convolutions, norms, poolings and linear layers are read off.

    A gap in `features.N` is taken for a pooling, as is the unseen end. Raises NetworkError.
    """
    kernels = _numbered(shapes, "features", rank=4)
    bare = len(shapes.get("classifier.weight", ())) == 2
    heads = [] if bare else _numbered(shapes, "classifier", rank=2)
    if not kernels or not (bare or heads) or kernels[0] != 0:
        raise NetworkError(
            "these tensors are no VGG",
            hint="Expected features.0.weight, …, and classifier.weight or classifier.0.weight, ….",
        )
    convolutions = []
    for at, following in zip(kernels, [*kernels[1:], None], strict=True):
        weight = shapes[f"features.{at}.weight"]
        norm = f"features.{at + 1}.weight" in shapes and len(shapes[f"features.{at + 1}.weight"]) == 1
        free = 1 if following is None else following - at - (3 if norm else 2)
        if free not in (0, 1):
            raise NetworkError(
                f"these tensors are no VGG: between features.{at} and features.{following} there is room for "
                f"{free} modules after the ReLU, expected a pooling or nothing"
            )
        bias = f"features.{at}.bias" in shapes
        convolutions.append(Convolution(weight[0], weight[2], bias, norm, pool=free == 1))
    names = ["classifier"] if bare else [f"classifier.{at}" for at in heads]
    gaps = [0] if bare else [heads[0], *(b - a - 2 for a, b in zip(heads, heads[1:], strict=False))]
    if min(gaps) < 0:
        raise NetworkError("these tensors are no VGG: linear layers without a ReLU between them")
    linears = [
        Linear(shapes[f"{name}.weight"][0], f"{name}.bias" in shapes, gap)
        for name, gap in zip(names, gaps, strict=True)
    ]
    flat, channels = shapes[f"{names[0]}.weight"][1], convolutions[-1].outputs
    side = math.isqrt(flat // channels)
    if side**2 * channels != flat:
        raise NetworkError(
            f"these tensors are no VGG: {names[0]}.weight reads {flat} numbers, expected "
            f"{channels} channels times a square"
        )
    return VGG(Plan(shapes["features.0.weight"][1], tuple(convolutions), side, tuple(linears), bare))


def _numbered(shapes: Mapping[str, tuple[int, ...]], prefix: str, *, rank: int) -> list[int]:
    names = [name for name, shape in shapes.items() if len(shape) == rank]
    return sorted(
        int(m[1]) for name in names if (m := re.fullmatch(rf"{prefix}\.([0-9]{{1,9}})\.weight", name))
    )
