"""Residual networks for 32×32 images: resnet20, resnet32, resnet44, resnet56.

Three stages of `n` blocks with 16, 32 and 64 channels (times `width`), 6n + 2 layers deep. Tensor names
are torchvision's (`layer1.0.conv1`, `downsample.0`, `fc`); networks read from tensors may instead spell
`shortcut.0`, `shortcut.1` and `linear`. Where the shape changes, the stages are joined by a 1×1 or 3×3
convolution or, without any parameters, by zero channels (option A).

He et al. 2016, §4.2, arXiv:1512.03385; wider and with LayerNorm as in Git Re-Basin, arXiv:2209.04836, A.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import NetworkError, UsageError
from ._convolutional import BlockPlan, Plan, ResNet, begun, blocks_of, spelled, stages, widened

VARIANTS = ("resnet20", "resnet32", "resnet44", "resnet56")
JOINS = ("conv1x1", "conv3x3", "pad")


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
    channels = widened(name, (16, 32, 64), width)
    repeats = (int(name.removeprefix("resnet")) - 2) // 6
    ways: dict[str, str | int] = {"conv1x1": 1, "conv3x3": 3, "pad": "pad"}
    blocks = stages([((count,), count) for count in channels], [repeats] * len(channels), ways[join])
    plan = Plan(input_shape[0], channels[0], 3, blocks, classes, 2 ** len(blocks), norm=norm or "batch")
    return begun(ResNet(plan), input_shape)


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> ResNet:
    """The network of exactly these tensors: depth, widths, norm, joins, biases and spelling are read off.

    Raises NetworkError naming the tensor that is missing or that does not fit.
    """
    shortcut, head = spelled(shapes)
    found: dict[int, list[BlockPlan]] = {}
    for s, b, stride in blocks_of(shapes):
        found.setdefault(s, []).append(_block(shapes, f"layer{s}.{b}", shortcut, stride))
    if not found:
        raise NetworkError(_NO, hint="Expected layer1.0.conv1.weight, layer1.0.conv2.weight, …")
    stem, inputs, kernel, _ = _shape(shapes, "conv1.weight", 4)
    if kernel != 3:
        raise NetworkError(f"{_NO}: conv1.weight is {kernel}×{kernel}, expected 3×3")
    norm = "none" if "bn1.weight" not in shapes else "batch" if "bn1.running_mean" in shapes else "layer"
    convolutions = {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 4}
    plan = Plan(
        inputs,
        stem,
        kernel,
        tuple(map(tuple, found.values())),
        _shape(shapes, f"{head}.weight", 2)[0],
        2 ** len(found),  # two pixels in the last stage: each kernel sees more than its middle
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
    return BlockPlan(inputs, (inner,), outputs, stride, join, f"{prefix}.{shortcut}.1.weight" in shapes)


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str, rank: int) -> tuple[int, ...]:
    if name not in shapes:
        raise NetworkError(f"{_NO}: {name} is missing")
    if len(shapes[name]) != rank:
        raise NetworkError(f"{_NO}: {name} has shape {tuple(shapes[name])}, expected {rank} axes")
    return tuple(shapes[name])
