"""What a merged model is compared with: both models asked at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from ..networks.recording import Recording
from ..networks.running import Wrapper, select

Tensors = Mapping[str, Tensor]


class Ensemble(Wrapper):
    """The mean of both models' logits: an upper reference, at twice the cost of one network.

    Logits are averaged, not probabilities: that is what a merged network can be hoped to compute. `network`
    is run with the tensors of `a`, then of `b`, and keeps its own; not on batches that both have `answered`.
    """

    details = {"cost": 2}

    def __init__(
        self,
        network: nn.Module,
        a: Tensors,
        b: Tensors,
        output: str | int | None,
        answered: Sequence[Recording] = (),
    ):
        super().__init__()
        self.answered = answered
        own = network.state_dict()
        self.network, self.output = network, output
        self.states = [{name: model[name].to(tensor) for name, tensor in own.items()} for model in (a, b)]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        known = [answers.known(args[0]) for answers in self.answered if len(args) == 1]
        if len(known) == 2 and all(each is not None for each in known):
            return (known[0] + known[1]) / 2
        one, other = (
            select(functional_call(self.network, state, args, kwargs), self.output) for state in self.states
        )
        return (one + other) / 2
