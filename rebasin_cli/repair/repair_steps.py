"""The one way to repair a merged model: resolve what was asked for, choose, apply, account.

`rebasin merge`, `rebasin repair`, the rows of a barrier report and `rebasin_cli.merge` all come here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import networks
from ..datasets.batches import First, steady
from ..errors import CheckpointError, UsageError, unknown
from ..networks.evaluation import Scores, evaluate
from ..networks.forward import fed
from ..runtime.ranks import ALONE, Ranks
from ..types import Batches, Tensors
from .biases import calibrated_biases
from .channels import MATCHES, Repaired, renormalize, reset_norms
from .choices import Choice, choose, parted
from .distillation import after, distill
from .options import REFIT_BATCH, RIDGE, SAMPLES
from .refits import refit

# What --repair takes, beside auto. "bias" alone needs no samples.
REPAIRS = ("none", "reset", *MATCHES, "refit", "distill", "bias")


def resolved(how: str, *, statistics: bool, measurable: bool) -> str:
    """What "auto" is, as far as nothing has to be measured for it; all else stays as it is.

    Running `statistics` are reset: their average describes neither model. Where there are none, "auto" stays
    if a network and training samples are there to choose by (`measurable`), and is "none" where not.

    Raises UsageError for a repair that there is not.
    """
    if how not in ("auto", *REPAIRS):
        raise unknown("repair", how, ["auto", *REPAIRS])
    if how == "auto" and statistics:
        return "reset"
    return "none" if how == "auto" and not measurable else how


def open_to_choice(how: str, *, statistics: bool) -> tuple[str, ...]:
    """The repairs that `how` leaves open to a search that tries them: "auto" some, any other itself.

    The least comes first: what needs no more than it has is left alone.
    """
    if how != "auto":
        # a bias needs no samples to be judged by, and a distillation takes too long for every method
        return () if how in ("none", "bias", "distill") else (how,)
    return ("reset", *SAMPLES) if statistics else ("none", "repair", *SAMPLES)


def few(batches: Any, how: str, most: int | None = None, *, seed: int = 0) -> Any:
    """As many samples as a repair is worth that a search chose by itself, or as the search took, `most`.

    Of a data set those that the seed draws.
    """
    if how not in SAMPLES:
        return batches
    most = most or SAMPLES[how]
    if not hasattr(batches, "subset"):
        return First(batches, most)
    return batches.subset(most, seed).with_batch_size(REFIT_BATCH)


@dataclass(frozen=True)
class Repairs:
    """One repair for all merges of the same `endpoints`, which are in one basin.

    `how` is one of `REPAIRS` but "none". `batches` are the training samples that it measures; "bias" takes
    one batch of `inputs` in their place, or random ones of the network's `example_shape`. Networks are run
    on `device`; `ridge` is of "refit", `output` is what "distill" looks at, `seconds` are what it may
    take, `share` is the part of its training that is done, and `logits` whether outputs may be logits of
    classes, which a loss of the user's own does not tell. `known` keeps what the endpoints say, for
    all merges. "auto" measures by `scores` and chooses by the figure `by`; `metrics` are told if asked for,
    and where what is measured was `named` by the user it has to be measurable. Several ranks that
    share `scores` take turns with the batches of a refit and of moments, and share the steps of a
    distillation; all else each does alike.
    """

    how: str
    endpoints: Sequence[Tensors]
    batches: Batches | None = None
    inputs: Any = None
    new_bias: bool = False
    ridge: float | None = None
    output: str | int | None = None
    device: str = "cpu"
    seconds: float = math.inf
    share: float = 1.0
    logits: bool = True
    known: dict[Any, Any] = field(default_factory=dict)
    scores: Callable[..., Scores] | None = None
    by: str = "loss"
    metrics: bool = False
    named: bool = False

    @property
    def ranks(self) -> Ranks:
        """Those that share what is measured."""
        found: Ranks = getattr(self.scores, "ranks", ALONE)
        return found

    def apply(self, network: nn.Module, weights: Sequence[float]) -> Repaired:
        """Repair `network`, which holds the merge with these `weights` of the endpoints, in place."""
        if self.how == "reset":
            return reset_norms(network, self.measured_on, device=self.device)
        if self.how == "refit":
            return self._refit(network, weights, self.measured_on)
        if self.how == "distill":
            began = time.monotonic()
            first = self._refit(network, weights, few(self.measured_on, "refit"))
            left = max(0.0, self.seconds - (time.monotonic() - began))
            done = distill(
                network,
                self.endpoints,
                self.measured_on,
                weights=weights,
                output=self.output,
                device=self.device,
                seconds=left,
                share=self.share,
                logits=self.logits,
                ranks=self.ranks,
            )
            return after(first, done)
        return renormalize(
            network,
            self.endpoints,
            self.measured_on,
            match=self.how,
            weights=weights,
            new_bias=self.new_bias,
            known=self.known,
            device=self.device,
            ranks=self.ranks,
        )

    @property
    def measured_on(self) -> Batches:
        """The training samples that it measures; raises LookupError where there are none."""
        if self.batches is None:
            raise LookupError(f"the repair {self.how} measures training samples")
        return self.batches

    def _refit(self, network: nn.Module, weights: Sequence[float], batches: Batches) -> Repaired:
        return refit(
            network,
            self.endpoints,
            batches,
            weights=weights,
            ridge=RIDGE if self.ridge is None else self.ridge,
            known=self.known,
            device=self.device,
            ranks=self.ranks,
        )

    def choose(
        self,
        network: nn.Module,
        weights: Sequence[float],
        held: Iterable[Any],
        *,
        output: str | int | None = None,
        apart: bool = True,
        unseen: bool = False,
    ) -> tuple[Choice, Repaired | None]:
        """Whether the merge is better on `held` by the repair; what it did, if so. It stays repaired.

        `held` are samples `apart` from those that the repair measures, if that can be, and `unseen` by the
        endpoints, if they are. What cannot be
        measured is not repaired, and the choice says why (`choices.choose`).
        """
        done: list[Repaired] = []
        choice = choose(
            network,
            lambda it: done.append(self.apply(it, weights)),
            held,
            scores=self.scores or partial(evaluate, output=output, device=self.device),
            endpoints=self.endpoints,
            weights=weights,
            output=output,
            device=self.device,
            repair=self.how,
            apart=apart,
            unseen=unseen,
            by=self.by,
            metrics=self.metrics,
            named=self.named,
        )
        return choice, None if choice.chosen == "none" else done[-1]

    def biases(self, network: nn.Module, weights: Sequence[float]) -> dict[str, torch.Tensor]:
        """The biases that `how` "bias" gives the merge, which the network holds and keeps."""
        inputs = self.inputs
        if inputs is None:
            inputs = networks.example_inputs(network, torch.Generator())
        if inputs is None:
            raise UsageError("the network does not say what it takes", hint="Give one batch of `inputs`")
        shown = fed(network, inputs, self.device, quiet=True)
        return calibrated_biases(network, self.endpoints, shown, weights=weights)


@dataclass(frozen=True)
class Outcome:
    """What became of a merged model: `tensors` that are others now, on the CPU; how, and why.

    `repaired` is None where nothing was done, `choice` where nothing was chosen.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    repaired: Repaired | None = None
    choice: Choice | None = None

    @classmethod
    def of(cls, network: nn.Module, done: Repaired, choice: Choice | None = None) -> Outcome:
        """What a repair `done` changed in the network. Raises CheckpointError for what is not finite."""
        state = network.state_dict()
        changed = {name: state[name].to("cpu", copy=True) for name in done.tensors if name in state}
        _check_finite(changed)
        return cls(changed, done, choice)


def repair_merged(
    network: nn.Module,
    tensors: Tensors,
    repairs: Repairs,
    weights: Sequence[float],
    *,
    held: Iterable[Any] | None = None,
    unseen: bool = False,
    output: str | int | None = None,
) -> Outcome:
    """Repair the merge that `tensors` are, with these `weights` of the endpoints.

    `how` "auto" repairs where it is better on `held` (which may be `unseen` by the endpoints), as
    `choices` says, else leaves the model as it is. `network`, on the device of `repairs`, is overwritten.
    Raises UsageError, DataError, NetworkError.
    """
    networks.load(network, tensors)
    if repairs.how == "bias":
        biases = repairs.biases(network, weights)
        _check_finite(biases)
        return Outcome(biases, Repaired("bias", tuple(biases), passes=0, tensors=tuple(biases)))
    if repairs.how != "auto":
        return Outcome.of(network, repairs.apply(network, weights))
    batches, held, apart = set_apart(repairs.measured_on, held)
    judged: dict[str, Any] = {key: getattr(repairs, key) for key in ("scores", "by", "metrics", "named")}
    tried = Repairs("repair", repairs.endpoints, batches, device=repairs.device, **judged)
    choice, done = tried.choose(network, weights, held, output=output, apart=apart, unseen=unseen)
    return Outcome(choice=choice) if done is None else Outcome.of(network, done, choice)


def _check_finite(changed: Tensors) -> None:
    for name, tensor in changed.items():
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"repaired, {name} would hold NaN or infinite values",
                hint="Check the models' weights; merge them as they are with --repair none",
            )


def set_apart(batches: Batches, held: Iterable[Any] | None) -> tuple[Iterable[Any], Iterable[Any], bool]:
    """Batches to measure a repair on, others to judge it by, and whether these are others.

    Where no `held` are given, every third batch is kept from the repair.
    """
    if held is not None:
        return batches, held, held is not batches
    measured, held = parted(steady(batches))
    return measured, held, measured is not held
