"""Tiny-10: ten layers for CIFAR-10 in about 0.09 million parameters.

Seven 3×3 convolutions with 16, 16, 32 (stride 2), 32, 32, 64 (stride 2) and 64 (no padding) channels, a
1×1 convolution with 64, BatchNorm and ReLU after each, the average over positions, a linear layer. Tensors
are `conv1` … `conv8`, `bn1` … `bn8` and `fc`; `width` multiplies the channels.

Kornblith et al. 2019, Similarity of Neural Network Representations Revisited, appendix, arXiv:1905.00414.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import NetworkError, UsageError
from ._convolutional import begun, widened

VARIANTS = ("tinyten",)

CHANNELS = (16, 16, 32, 32, 32, 64, 64, 64)
STRIDES = (1, 1, 2, 1, 1, 2, 1, 1)
KERNELS = (3, 3, 3, 3, 3, 3, 3, 1)
PADDINGS = (1, 1, 1, 1, 1, 1, 0, 0)


class TinyTen(nn.Module):
    """`channels` are those of the input and of the eight convolutions."""

    def __init__(
        self,
        channels: Sequence[int],
        classes: int,
        *,
        norm: bool = True,
        biased: Sequence[bool] = (False,) * 8,
        head_bias: bool = True,
    ):
        super().__init__()
        for i in range(8):
            conv = nn.Conv2d(
                channels[i], channels[i + 1], KERNELS[i], STRIDES[i], PADDINGS[i], bias=biased[i]
            )
            self.add_module(f"conv{i + 1}", conv)
            self.add_module(f"bn{i + 1}", nn.BatchNorm2d(channels[i + 1]) if norm else nn.Identity())
        self.fc = nn.Linear(channels[-1], classes, bias=head_bias)
        self.example_shape: tuple[int, ...] = (channels[0], 32, 32)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(1, 9):
            x = torch.relu(self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(x)))
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
) -> TinyTen:
    """A network to train; `width` multiplies the channels, `norm` is "batch" or "none". Raises UsageError."""
    if depth is not None:
        raise UsageError("tinyten has a fixed depth", hint="Leave out --depth.")
    if norm not in (None, "batch", "none"):
        raise UsageError(f"tinyten has no norm {norm!r}", hint="Choose batch or none.")
    if len(input_shape) != 3 or min(input_shape[1:]) < 9:
        raise UsageError(f"tinyten reads images (C, H, W) of 9×9 or more, not {tuple(input_shape)}")
    channels = widened(name, CHANNELS, width)
    normed = norm != "none"
    network = TinyTen([input_shape[0], *channels], classes, norm=normed, biased=(not normed,) * 8)
    return begun(network, input_shape)


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> TinyTen:
    """The network of exactly these tensors. Raises NetworkError where one is missing."""
    expected = [*(f"conv{i}.weight" for i in range(1, 9)), "fc.weight"]
    if missing := [f"{name} is missing" for name in expected if name not in shapes]:
        raise NetworkError("these tensors are no tinyten", problems=missing)
    convolutions = [shapes[f"conv{i}.weight"] for i in range(1, 9)]
    return TinyTen(
        [convolutions[0][1], *(shape[0] for shape in convolutions)],
        shapes["fc.weight"][0],
        norm="bn1.weight" in shapes,
        biased=[f"conv{i}.bias" in shapes for i in range(1, 9)],
        head_bias="fc.bias" in shapes,
    )
