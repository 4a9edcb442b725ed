"""Distill: a merged network trained to give what its endpoints give in the mean, without labels.

A refit fits layer by layer, and what one layer misses the next ones can only pass on. So all weights are
trained together afterwards, on the same kind of samples: the targets are the weighted mean of the endpoints'
outputs, the loss is the mean square of what is missing. Of logits of classes the divergence of distributions
is added, both in parts of what they were before (docs/decisions/0073).

Hinton et al. 2015, arXiv:1503.02531, with several teachers and their outputs in place of probabilities.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import networks
from ..averages.weights import checked as checked_weights
from ..errors import CheckpointError
from ..learning.loop import Learner, Made, learn
from ..learning.recipe import cosine
from ..networks.forward import evaluating
from ..networks.state import duplicate
from ..runtime import optimizers
from ..runtime.ranks import ALONE, Ranks
from ..runtime.seeds import seeded
from ..runtime.threads import on_one_thread
from ..types import Batches
from .batchnorm import reset
from .channels import Repaired
from .ensemble import MEMORY, Ensemble, holding
from .options import epochs_of

RATE = 0.02  # of a tensor's size that a step of Adam changes it by; it falls to 0 along a cosine


def distill(
    network: nn.Module,
    endpoints: Sequence[Mapping[str, Tensor]],
    batches: Batches,
    *,
    weights: Sequence[float] | None = None,
    epochs: int | None = None,
    output: str | int | None = None,
    memory: int = MEMORY,
    device: str | torch.device = "cpu",
    seconds: float = math.inf,
    share: float = 1.0,
    logits: bool = True,
    ranks: Ranks = ALONE,
) -> Repaired:
    """Train `network`, which holds a merge, towards the weighted mean of its endpoints' outputs, in place.

    `weights` are those of the merge (default: equal). Norms with running statistics are in training
    meanwhile, and get those of the trained network; dropout stays off. Where training comes no nearer to the
    targets, as when all endpoints are the same, nothing changes. Labels are not looked at, but for
    the axis of logits; without `logits` outputs are taken for numbers of any kind. Targets beyond `memory`
    bytes are computed in every epoch (`epochs`: 4, of few samples more, for 200 steps in all; a
    `share` of these where it is below 1). The same samples give the same weights on the same processor,
    unless `seconds` end the training before: steps become smaller sooner then, so that it ends well, with
    fewer of them. Several `ranks` that call this alike share the steps.

    Raises UsageError, DataError, NetworkError where outputs hold no tensors, CheckpointError where outputs
    are no numbers.
    """
    shares = checked_weights(weights, len(endpoints))
    before, began = network.state_dict(), time.monotonic()
    with on_one_thread(), seeded(0, "distillation", str(device)):
        own = duplicate(network).float().to(device)
        teachers = [holding(own, end) for end in endpoints]
        samples = Ensemble(teachers, shares, batches, output, memory, device, logits, ranks)
        missing = samples.begin(own)
        if not math.isfinite(missing):
            raise CheckpointError(
                "the outputs of the merged models hold NaN or infinite values",
                hint="Check the models' weights; merge them as they are with --repair none",
            )
        epochs = epochs_of(samples.count) if epochs is None else epochs
        whole = epochs * samples.steps
        taken = _Distillation(own, samples, max(1, round(share * whole)), began, seconds).run(ranks)
        reset(own, batches, device=device)
        changed = () if not samples.missing(own) < missing else _taken(before, own.state_dict())
    layers = tuple(dict.fromkeys(name.rpartition(".")[0] for name in changed))
    return Repaired("distill", layers, passes=samples.passes, tensors=changed, share=taken / whole)


class _Distillation(Learner):
    """Adam on all weights; norms with running statistics use those of each step.

    It ends with the `steps`, or with the `seconds` since it `began`, whichever are over first.
    """

    every = 0  # where it diverges, it comes no nearer

    def __init__(self, network: nn.Module, samples: Ensemble, steps: int, began: float, seconds: float):
        self.network, self.samples, self.steps = network, samples, steps
        self.began, self.seconds = began, seconds
        parameters = [p for p in network.parameters() if p.is_floating_point()]
        fused = all(p.device.type == "cpu" for p in parameters) or None  # one pass over them, not ten
        self.optimizer = optimizers.make(torch.optim.Adam, _rated(parameters), fused=fused)

    def run(self, ranks: Ranks) -> int:
        """The steps that were taken."""
        self.ranks = ranks
        with evaluating(self.network), torch.enable_grad():
            for norm in networks.running_norms(self.network).values():
                norm.training = True
            learn(self, Made(lambda: self.samples), ranks)
        return self.done

    def over(self) -> bool:
        passed = (time.monotonic() - self.began) / self.seconds if self.seconds > 0 else 1.0
        self.share = max(self.done / self.steps, passed if passed == 0 else self.ranks.agree(passed))
        return self.share >= 1

    def begin_step(self, inputs: Any, targets: Any) -> None:
        falling = cosine(self.share)
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * falling
        self.optimizer.zero_grad(set_to_none=True)

    def loss(self, inputs: Any, targets: Any) -> Tensor:
        return self.samples.loss(self.network, inputs, targets)

    def move(self) -> None:
        self.optimizer.step()


def _rated(parameters: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """A rate of its own for each, so that networks of large and of small weights learn alike.

    What has one axis, and may be 0, takes the usual one of the others.
    """
    sizes = {p: p.detach().square().mean().sqrt().item() for p in parameters if p.ndim > 1 and p.numel()}
    usual = statistics.median(sizes.values()) if sizes else 1.0
    return [{"params": [p.requires_grad_()], "rate": RATE * (sizes.get(p) or usual)} for p in parameters]


def after(first: Repaired, then: Repaired) -> Repaired:
    """The account of a distillation that began with a refit; of the refit, where training came no nearer."""
    layers = tuple(dict.fromkeys([*first.corrected, *then.corrected]))
    left = tuple((name, why) for name, why in first.left if name not in then.tensors)
    changed = tuple(dict.fromkeys([*first.tensors, *then.tensors]))
    done = "distill" if then.tensors else "refit"
    return Repaired(done, layers, left, 0, first.passes + then.passes, changed, share=then.share)


def _taken(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Write what was trained into the network; the names of the tensors that are others now."""
    changed = []
    for name, tensor in before.items():
        new = after[name].to(tensor)
        if not torch.equal(tensor, new):
            changed.append(name)
    for name in changed:
        before[name].copy_(after[name])
    return tuple(changed)
