"""What a merged model is compared with: both models asked at once, and one of them trained for as long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from .. import networks
from ..datasets.batches import checked, part_of, size_of
from ..learning.loop import Learner, Made, learn
from ..networks.answers import Recording
from ..networks.classes import counted
from ..networks.forward import apart, call, fed, select
from ..networks.layout import Wrapper
from ..networks.state import duplicate
from ..networks.tied import state_of
from ..repair import plan_refit
from ..repair.calibration import Scaled
from ..repair.costs import distillation_passes
from ..repair.options import REFIT_SAMPLES
from ..runtime import optimizers
from ..runtime.ranks import ALONE, Ranks
from ..runtime.seeds import seeded
from ..types import Batches, Tensors


class Ensemble(Wrapper):
    """The mean of several models' logits: an upper reference, at the cost of as many networks.

    Logits are averaged, not probabilities: that is what a merged network can be hoped to compute. `network`
    is run with the tensors of each of `models`, and keeps its own; not on batches that all have `answered`.
    """

    def __init__(
        self,
        network: nn.Module,
        models: Iterable[Tensors],
        output: str | int | None,
        answered: Sequence[Recording] = (),
    ):
        super().__init__()
        self.answered = answered
        self.network, self.output = network, output
        self.states = [state_of(network, model) for model in models]
        self.details = {"cost": len(self.states)}

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        answers = [answers.known(args[0]) for answers in self.answered if len(args) == 1]
        known = [each for each in answers if each is not None]
        if not known or len(known) < len(answers):
            known = [
                select(
                    functional_call(self.network, state, *apart(self.network, (args, kwargs))), self.output
                )
                for state in self.states
            ]
        middle: Tensor = reduce(torch.add, known) / len(known)
        return middle


RATE, STEP = 1e-4, 50  # of Adam; samples a step


class Tuned(nn.Module):
    """A network that was trained further, with its account for the report."""

    def __init__(self, network: nn.Module, output: str | int | None, details: Mapping[str, Any]):
        super().__init__()
        self.network, self.output, self.details = network, output, dict(details)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return select(self.network(*args, **kwargs), self.output)


Control = Ensemble | Tuned | Scaled  # what is measured in a network's place; `details` go into its row


def fine_tuned(
    network: nn.Module,
    model: Mapping[str, Tensor],
    name: str,
    batches: Batches,
    *,
    word: str = "refit",
    share: float = 1.0,
    output: str | int | None = None,
    device: str = "cpu",
    seed: int = 0,
    ranks: Ranks = ALONE,
) -> Tuned:
    """One endpoint trained on the samples of a refit *with their labels*, for as many multiplications.

    So, about, for the same time: seconds would make two runs differ. Adam on cross-entropy, norms in
    training; `network` stays as it is. A refit multiplies in float64, which counts twice, and brings three
    models through the network twice; a step of training is three passes. So is one of a distillation
    (`word`), which begins with a refit on some of the samples, and does a `share` of its training. Several
    `ranks` that call this alike share the steps.
    """
    own = networks.load(duplicate(network), model).to(device)
    some = next(fed(own, inputs, device) for inputs, _ in checked(batches))
    planned = plan_refit(own, some)
    each = (2 * planned.products + 6 * planned.forward) / (3 * max(1, planned.forward))  # samples of training
    count = sum(size_of(targets, inputs) for inputs, targets in checked(batches))
    wanted = each * count
    if word == "distill":
        wanted = each * min(count, REFIT_SAMPLES) + share * count * distillation_passes(2, count) / 3
    tuning = _Tuning(own, wanted, output, device)
    with seeded(seed, "fine-tuning", device):
        own.train()
        learn(tuning, Made(lambda: _parts(batches)), ranks)
    return Tuned(own, output, {"endpoint": name, "labels": count, "steps": tuning.done}).eval()


def _parts(batches: Batches) -> Iterator[tuple[Any, Any]]:
    for inputs, targets in checked(batches):
        size = size_of(targets, inputs)
        for begun in range(0, size, STEP):
            if size - begun > 1 or size == 1:  # a norm may refuse a single sample
                yield part_of(inputs, begun, begun + STEP), part_of(targets, begun, begun + STEP)


class _Tuning(Learner):
    """Adam on the cross-entropy, until so many samples were seen."""

    every = 0  # a control that diverges is one that is worse

    def __init__(self, network: nn.Module, wanted: float, output: str | int | None, device: str):
        self.network, self.output, self.device = network, output, device
        self.left = wanted
        parameters = [p.requires_grad_(p.is_floating_point()) for p in network.parameters()]
        fused = torch.device(device).type == "cpu" or None
        self.optimizer = optimizers.make(torch.optim.Adam, parameters, lr=RATE, fused=fused)

    def over(self) -> bool:
        return self.left <= 0

    def counted(self, targets: Any, size: int) -> int:
        return counted(targets)

    def begin_step(self, inputs: Any, targets: Any) -> None:
        self.size = len(targets)
        self.optimizer.zero_grad(set_to_none=True)

    def loss(self, inputs: Any, targets: Any) -> Tensor:
        outputs = call(self.network, fed(self.network, inputs, self.device), output=self.output)
        return F.cross_entropy(outputs.float(), targets.to(self.device))

    def move(self) -> None:
        self.left -= self.size
        self.optimizer.step()
