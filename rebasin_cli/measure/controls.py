"""What a merged model is compared with: both models asked at once, and logits with a temperature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..datasets._batches import checked, size_of, to_device
from ..networks.evaluation import call, evaluating, select
from ..repair import temperature

Tensors = Mapping[str, Tensor]


class Ensemble(nn.Module):
    """The mean of both models' logits: an upper reference, at twice the cost of one network.

    Logits are averaged, not probabilities: that is what a merged network can be hoped to compute. `network`
    is run with the tensors of `a`, then of `b`, and keeps its own.
    """

    details = {"cost": 2}

    def __init__(self, network: nn.Module, a: Tensors, b: Tensors, output: str | int | None):
        super().__init__()
        own = network.state_dict()
        self.network, self.output = network, output
        self.states = [{name: model[name].to(tensor) for name, tensor in own.items()} for model in (a, b)]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        one, other = (
            select(functional_call(self.network, state, args, kwargs), self.output) for state in self.states
        )
        return (one + other) / 2


class Scaled(nn.Module):
    """A network's logits divided by the temperature that fits held-out samples best.

    Weights stay as they are. `details` tells the temperature. Guo et al. 2017, section 4.2, arXiv:1706.04599.
    """

    def __init__(self, network: nn.Module, held: Iterable[Any], output: str | int | None, device: str):
        super().__init__()
        self.network, self.output = network, output
        self.temperature = fit_temperature(network, held, output=output, device=device)
        self.details = {"temperature": self.temperature}

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return select(self.network(*args, **kwargs), self.output) / self.temperature


def fit_temperature(
    network: nn.Module, held: Iterable[Any], *, output: str | int | None = None, device: str = "cpu"
) -> float:
    """The temperature of least loss on `held`, batches that the network is not tested on.

    NaN where some logits are not finite: what divides them by it has no loss either.
    """
    logits, targets = [], []
    with evaluating(network), torch.inference_mode():
        for inputs, wanted in checked(held):
            if size_of(wanted):
                logits.append(call(network, to_device(inputs, device), output=output).cpu())
                targets.append(wanted.cpu())
    every = torch.cat(logits)
    return temperature(every, torch.cat(targets)) if every.isfinite().all() else math.nan
