"""GoogLeNet with BatchNorm: nine inception blocks, each the concatenation of four branches.

Tensors are torchvision's (`conv1.conv`, `conv1.bn`, `inception3a.branch1.conv`, …, `fc`). As there, the
third branch has a 3×3 convolution where the paper has 5×5, and BatchNorm's eps is 0.001. torchvision's
public weights were trained on images normalised to mean 0.5 and deviation 0.5 (its `transform_input`).

The auxiliary heads `aux1` and `aux2` exist where the tensors have them. They take part in training only:
then `forward` returns `Outputs(logits, aux2, aux1)`; in evaluation it returns the logits.

Szegedy et al. 2014, table 1, arXiv:1409.4842.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import NetworkError, UsageError
from ._convolutional import begun, widened

VARIANTS = ("googlenet",)

# Channels of branch1; branch2's 1×1 and 3×3; branch3's 1×1 and 3×3; branch4.
BLOCKS = {
    "inception3a": (64, 96, 128, 16, 32, 32),
    "inception3b": (128, 128, 192, 32, 96, 64),
    "inception4a": (192, 96, 208, 16, 48, 64),
    "inception4b": (160, 112, 224, 24, 64, 64),
    "inception4c": (128, 128, 256, 24, 64, 64),
    "inception4d": (112, 144, 288, 32, 64, 64),
    "inception4e": (256, 160, 320, 32, 128, 128),
    "inception5a": (256, 160, 320, 32, 128, 128),
    "inception5b": (384, 192, 384, 48, 128, 128),
}
LAYERS = ("branch1", "branch2.0", "branch2.1", "branch3.0", "branch3.1", "branch4.1")  # in BLOCKS' order
STEM = (64, 64, 192)
POOLED_BEFORE = {"inception4a": 3, "inception5a": 2}  # max-pooling with this kernel and stride 2
AUXILIARY = {"inception4a": "aux1", "inception4d": "aux2"}  # the head that reads the block's output


class Outputs(NamedTuple):
    """What a network with auxiliary heads returns in training."""

    logits: Tensor
    aux2: Tensor | None
    aux1: Tensor | None


class ConvNorm(nn.Module):
    """Convolution without bias, BatchNorm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class Inception(nn.Module):
    """1×1; 1×1 then 3×3; 1×1 then 3×3; pooling then 1×1: side by side along the channels."""

    def __init__(self, inputs: int, channels: Sequence[int]):
        super().__init__()
        a, b0, b1, c0, c1, d = channels
        self.branch1 = ConvNorm(inputs, a, 1)
        self.branch2 = nn.Sequential(ConvNorm(inputs, b0, 1), ConvNorm(b0, b1, 3))
        self.branch3 = nn.Sequential(ConvNorm(inputs, c0, 1), ConvNorm(c0, c1, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), ConvNorm(inputs, d, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], dim=1)


class Auxiliary(nn.Module):
    """A second classifier half-way: average to 4×4, 1×1 convolution, two linear layers."""

    def __init__(self, inputs: int, channels: int, hidden: int, classes: int):
        super().__init__()
        self.conv = ConvNorm(inputs, channels, 1)
        self.fc1 = nn.Linear(channels * 16, hidden)
        self.fc2 = nn.Linear(hidden, classes)
        self.dropout = nn.Dropout(0.7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(nn.functional.adaptive_avg_pool2d(x, 4))
        logits: Tensor = self.fc2(self.dropout(torch.relu(self.fc1(torch.flatten(x, 1)))))
        return logits


class GoogLeNet(nn.Module):
    """`stem` and `blocks` hold channels as STEM and BLOCKS do; `auxiliary` maps a head to (channels, hidden).

    Images (N, C, H, W) to logits (N, classes), or to `Outputs` in training with auxiliary heads.
    """

    def __init__(
        self,
        inputs: int,
        stem: Sequence[int],
        blocks: Mapping[str, Sequence[int]],
        classes: int,
        *,
        auxiliary: Mapping[str, tuple[int, int]] | None = None,
    ):
        super().__init__()
        self.conv1 = ConvNorm(inputs, stem[0], 7, stride=2)
        self.conv2 = ConvNorm(stem[0], stem[1], 1)
        self.conv3 = ConvNorm(stem[1], stem[2], 3)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.smaller_pool = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.blocks = list(blocks)
        channels = stem[2]
        heads: dict[str, nn.Module] = {}
        for name, widths in blocks.items():
            self.add_module(name, Inception(channels, widths))
            channels = widths[0] + widths[2] + widths[4] + widths[5]
            head = AUXILIARY.get(name)
            if head is not None and auxiliary is not None and head in auxiliary:
                middle, hidden = auxiliary[head]
                heads[head] = Auxiliary(channels, middle, hidden, classes)
        for head, module in heads.items():
            self.add_module(head, module)
        self.auxiliary = tuple(heads)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(channels, classes)
        self.example_shape: tuple[int, ...] = (inputs, 64, 64)

    def forward(self, x: Tensor) -> Tensor | Outputs:
        x = self.pool(self.conv1(x))
        x = self.pool(self.conv3(self.conv2(x)))
        heads: dict[str, Tensor] = {}
        for name in self.blocks:
            if name in POOLED_BEFORE:
                x = self.pool(x) if POOLED_BEFORE[name] == 3 else self.smaller_pool(x)
            x = self.get_submodule(name)(x)
            if self.training and AUXILIARY.get(name) in self.auxiliary:
                heads[AUXILIARY[name]] = self.get_submodule(AUXILIARY[name])(x)
        logits = self.fc(self.dropout(x.mean(dim=(2, 3))))
        return Outputs(logits, heads.get("aux2"), heads.get("aux1")) if heads else logits


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
) -> GoogLeNet:
    """A network to train, without auxiliary heads; `width` multiplies all channels. Raises UsageError."""
    if depth is not None:
        raise UsageError(f"{name} has a fixed depth", hint="Leave out --depth.")
    if norm not in (None, "batch"):
        raise UsageError(f"{name} has no norm {norm!r}", hint="Choose batch, or leave out --norm.")
    if len(input_shape) != 3:
        raise UsageError(f"{name} reads images (C, H, W), the data has shape {tuple(input_shape)}")
    stem = widened(name, STEM, width)
    blocks = {block: widened(name, counts, width) for block, counts in BLOCKS.items()}
    return begun(GoogLeNet(input_shape[0], stem, blocks, classes), input_shape)


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> GoogLeNet:
    """The network of exactly these tensors: widths and auxiliary heads are read off. Raises NetworkError."""
    try:
        stem = [shapes[f"conv{i}.conv.weight"][0] for i in (1, 2, 3)]
        blocks = {block: [shapes[f"{block}.{layer}.conv.weight"][0] for layer in LAYERS] for block in BLOCKS}
        auxiliary = {
            head: (shapes[f"{head}.conv.conv.weight"][0], shapes[f"{head}.fc1.weight"][0])
            for head in AUXILIARY.values()
            if f"{head}.conv.conv.weight" in shapes
        }
        inputs, classes = shapes["conv1.conv.weight"][1], shapes["fc.weight"][0]
    except (KeyError, IndexError) as cause:
        raise NetworkError(f"these tensors are no GoogLeNet: {cause}") from cause
    return GoogLeNet(inputs, stem, blocks, classes, auxiliary=auxiliary)
