"""What a merged model is compared with: both models asked at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from ..networks.running import select

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
