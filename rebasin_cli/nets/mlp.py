"""Multilayer perceptron: `depth` hidden layers of `width` units, ReLU or tanh, optional norms.

Inputs of any shape are flattened. Tensors are `layers.{i}.weight`, `layers.{i}.bias`, `norms.{i}.*` where
there are norms, `head.weight` and `head.bias`. No shape of these tells the activation: where there is a
tensor `tanh`, one number that nothing reads, it is tanh. The defaults, 3 × 512, are Git Re-Basin's on MNIST.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import NetworkError, UsageError

VARIANTS = ("mlp",)
ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class MLP(nn.Module):
    """`sizes` are inputs, hidden layers and classes; `norm` is "none", "batch" or "layer"."""

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        norm: str = "none",
        bias: bool = True,
        head_bias: bool = True,
        activation: str = "relu",
    ):
        super().__init__()
        *hidden, classes = sizes
        self.layers = nn.ModuleList(
            nn.Linear(a, b, bias=bias) for a, b in zip(hidden, hidden[1:], strict=False)
        )
        kinds: dict[str, Callable[[int], nn.Module]] = {
            "batch": nn.BatchNorm1d,
            "layer": nn.LayerNorm,
            "none": lambda size: nn.Identity(),
        }
        self.norms = nn.ModuleList(kinds[norm](size) for size in hidden[1:])
        self.head = nn.Linear(hidden[-1], classes, bias=head_bias)
        self.activation = activation
        if activation == "tanh":
            self.register_buffer("tanh", torch.ones(()))
        self.example_shape: tuple[int, ...] = (sizes[0],)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        act = ACTIVATIONS[self.activation]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = act(norm(layer(x)))
        logits: Tensor = self.head(x)
        return logits


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
    activation: str | None = None,
) -> MLP:
    """A network to train: `depth` (3) hidden layers of `width` (512) units, ReLU. Raises UsageError."""
    depth, units = 3 if depth is None else depth, 512 if width is None else width
    if depth < 1:
        raise UsageError(f"an mlp needs one hidden layer at least, not {depth}")
    if units < 1 or units != int(units):
        raise UsageError(f"the width of an mlp is a number of units, not {units:g}", hint="Try --width 512.")
    if norm not in (None, "none", "batch", "layer"):
        raise UsageError(f"unknown norm {norm!r}", hint="Choose none, batch or layer.")
    if activation not in (None, *ACTIVATIONS):
        raise UsageError(f"unknown activation {activation!r} of an mlp", hint="Choose relu or tanh.")
    sizes = [math.prod(input_shape), *[int(units)] * depth, classes]
    network = MLP(sizes, norm=norm or "none", activation=activation or "relu")
    network.example_shape = tuple(input_shape)
    return network


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> MLP:
    """The network of exactly these tensors. Raises NetworkError where they are no mlp."""
    found = (re.fullmatch(r"layers\.([0-9]{1,9})\.weight", name) for name in shapes)
    indices = sorted(int(match[1]) for match in found if match)
    if not indices or indices != list(range(len(indices))) or "head.weight" not in shapes:
        raise NetworkError(
            "these tensors are no mlp", hint="Expected layers.0.weight, layers.1.weight, …, head.weight."
        )
    weights = [shapes[f"layers.{i}.weight"] for i in indices]
    norm = "none"
    if "norms.0.weight" in shapes:
        norm = "batch" if "norms.0.running_mean" in shapes else "layer"
    return MLP(
        [weights[0][1], *(weight[0] for weight in weights), shapes["head.weight"][0]],
        norm=norm,
        bias="layers.0.bias" in shapes,
        head_bias="head.bias" in shapes,
        activation="tanh" if "tanh" in shapes else "relu",
    )
