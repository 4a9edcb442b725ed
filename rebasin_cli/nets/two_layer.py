"""Two-layer network: one hidden layer of `width` units and ReLU between two linear maps.

The network of most theory on permutation symmetry. Inputs of any shape are flattened. Tensors are
`fc1.weight`, `fc2.weight` and, unless left out, `fc1.bias` and `fc2.bias`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import NetworkError, UsageError

VARIANTS = ("two_layer",)


class TwoLayer(nn.Module):
    """Inputs of `inputs` numbers, `hidden` units, `classes` logits."""

    def __init__(self, inputs: int, hidden: int, classes: int, *, bias: bool = True, head_bias: bool = True):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden, bias=bias)
        self.fc2 = nn.Linear(hidden, classes, bias=head_bias)
        self.example_shape: tuple[int, ...] = (inputs,)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return logits


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
) -> TwoLayer:
    """A network to train with `width` (512) hidden units. Raises UsageError."""
    units = 512 if width is None else width
    if depth not in (None, 1):
        raise UsageError(f"{name} has one hidden layer, not {depth}", hint="Try the net mlp with --depth.")
    if units < 1 or units != int(units):
        raise UsageError(f"the width of {name} is a number of units, not {units:g}", hint="Try --width 512.")
    if norm not in (None, "none"):
        raise UsageError(f"{name} has no norm {norm!r}", hint="Try the net mlp with --depth 1 and --norm.")
    network = TwoLayer(math.prod(input_shape), int(units), classes)
    network.example_shape = tuple(input_shape)
    return network


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> TwoLayer:
    """The network of exactly these tensors. Raises NetworkError where one is missing."""
    missing = [name for name in ("fc1.weight", "fc2.weight") if len(shapes.get(name, ())) != 2]
    if missing:
        raise NetworkError(
            "these tensors are no two-layer network",
            problems=[f"{name} is missing or no matrix" for name in missing],
        )
    hidden, inputs = shapes["fc1.weight"]
    return TwoLayer(
        inputs, hidden, shapes["fc2.weight"][0], bias="fc1.bias" in shapes, head_bias="fc2.bias" in shapes
    )
