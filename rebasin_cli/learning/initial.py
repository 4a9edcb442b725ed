"""First weights by a rule, in the place of a network's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from ..errors import RebasinError
from ..runtime.seeds import seeded

# The variance of a weight, of what a unit reads (fan in) and what reads it (fan out).
VARIANCES: dict[str, Callable[[int, int], float]] = {
    "kaiming": lambda fan_in, fan_out: 2 / fan_in,
    "lecun": lambda fan_in, fan_out: 1 / fan_in,
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "small": lambda fan_in, fan_out: 0.02**2,  # BERT, GPT-2, ViT
}
INITS = (*VARIANCES, "torch")


@torch.no_grad()
def initialize(network: nn.Module, init: str) -> None:
    """Normal weights of that variance in linear layers and convolutions, and biases of 0; in place.

    `torch`: as PyTorch's layers begin by themselves, uniform, a third of lecun's variance, biases too. Norms,
    embeddings and what attention keeps outside of such layers stay as they are.
    """
    for module in network.modules():
        if not isinstance(module, nn.Linear | nn.Conv2d):
            continue
        if init == "torch":
            module.reset_parameters()
            continue
        outputs, inputs, *kernel = module.weight.shape
        each = math.prod(kernel)
        module.weight.normal_(0, math.sqrt(VARIANCES[init](inputs * each, outputs * each)))
        if module.bias is not None:
            module.bias.zero_()


def begin_alike(build: Callable[[], nn.Module]) -> frozenset[str]:
    """The tensors that two networks have equal before they are trained: constants, and what a formula gives.

    None where one cannot be built.
    """
    first: dict[str, torch.Tensor] = {}
    for seed in (1, 2):
        try:
            with seeded(seed, "begins alike"):
                state = build().state_dict()
        except RebasinError:
            return frozenset()
        first = first or {name: tensor.clone() for name, tensor in state.items()}
    return frozenset(name for name, tensor in state.items() if torch.equal(first[name], tensor))
