"""Residual networks for ImageNet: resnet18, resnet34, resnet50, resnet101, resnet152.

Four stages of basic (two 3×3 convolutions) or bottleneck (1×1, 3×3, 1×1) blocks with 64, 128, 256 and 512
channels times `width`. Tensors are torchvision's (`layer1.0.conv1`, `downsample.0`, `fc`); networks read
from tensors may spell `shortcut.0`, `shortcut.1` and `linear`, as ports to CIFAR do. A 3×3 stem means such a
port: stride 1 and no max-pooling. The stride of a bottleneck sits on its 3×3 convolution.

He et al. 2015, table 1, arXiv:1512.03385.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import NetworkError, UsageError
from ._convolutional import BlockPlan, Plan, ResNet, begun, blocks_of, spelled, stages, widened

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
    channels = widened(name, CHANNELS, width)
    widths = [((count,), count) if name in BASIC else ((count, count), 4 * count) for count in channels]
    kernel = 3 if min(input_shape[1:]) < 64 else 7
    blocks = stages(widths, DEPTHS[name], 1)
    plan = Plan(input_shape[0], channels[0], kernel, blocks, classes, _side(kernel))
    return begun(ResNet(plan), input_shape)


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> ResNet:
    """The network of exactly these tensors: depth, widths, kind of block, stem and spelling are read off.

    Raises NetworkError naming the tensor that is missing.
    """
    try:
        return ResNet(_plan(shapes))
    except (KeyError, IndexError, ValueError) as cause:
        raise NetworkError(f"these tensors are no residual network: {cause}") from cause


def _plan(shapes: Mapping[str, tuple[int, ...]]) -> Plan:
    shortcut, head = spelled(shapes)
    found: dict[int, list[BlockPlan]] = {}
    for s, b, stride in blocks_of(shapes):
        prefix = f"layer{s}.{b}"
        last = 3 if f"{prefix}.conv3.weight" in shapes else 2
        outputs = [shapes[f"{prefix}.conv{i}.weight"][0] for i in range(1, last + 1)]
        way = shapes.get(f"{prefix}.{shortcut}.0.weight", (0, 0, "identity"))[2]
        block = BlockPlan(shapes[f"{prefix}.conv1.weight"][1], tuple(outputs[:-1]), outputs[-1], stride, way)
        found.setdefault(s, []).append(block)
    if not found:
        raise KeyError("layer1.0.conv1.weight")
    stem, inputs, kernel, _ = shapes["conv1.weight"]
    classes = shapes[f"{head}.weight"][0]
    blocks = tuple(map(tuple, found.values()))
    plan = Plan(inputs, stem, kernel, blocks, classes, _side(kernel), shortcut=shortcut, head=head)
    return replace(plan, head_bias=f"{head}.bias" in shapes)


def _side(kernel: int) -> int:
    """Of images of which two pixels a side are left at the end."""
    return 16 if kernel <= 3 else 64
