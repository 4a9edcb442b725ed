"""Two models, a network and samples, looked through before the first point between them is measured."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from .. import networks
from ..averages.names import agreed
from ..checkpoints.tensors import plain
from ..datasets import once
from ..datasets.batches import steady
from ..errors import UsageError
from ..networks.answers import Recording
from ..networks.evaluation import Scores, evaluate
from ..repair import Outcome
from ..repair.channels import Repaired
from ..repair.options import SAMPLES
from ..repair.repair_steps import few, open_to_choice, resolved, set_apart
from ..spec.library import resolve_words
from ..spec.spec import FittedSpec, Spec
from ..types import Batches, Tensors
from .paths import Measure
from .settings import Rows, Samples, repaired_label


@dataclass(frozen=True)
class Ready:
    """What all rows of a report share.

    `repair` is what was asked for, as far as nothing has to be measured for it, and `word` what repaired rows
    are called; `auto` whether it is chosen by held-out samples, `to_try` what a search may choose with its
    own choice, and `repaired` what it has repaired then, at λ = ½. `batches` are what a repair measures,
    `held` what it is judged by, `apart` whether these are other samples. `answers` have kept the outputs of
    both models, `ends` are their scores, `given` the splits as they were given, `fitted_on` the samples of a
    refit that a search chose.
    """

    models: tuple[Tensors, Tensors]
    fitted: FittedSpec
    network: nn.Module
    splits: Mapping[str, Iterable[Any]]
    batches: Batches | None
    held: Iterable[Any] | None
    apart: bool
    unseen: bool
    repair: str
    word: str
    auto: bool
    to_try: tuple[str, ...]
    statistics: bool
    scores: Measure
    output: str | int | None
    device: str
    seed: int
    answers: tuple[Recording, ...]
    ends: tuple[dict[str, Scores], ...]
    given: Mapping[str, Iterable[Any]]
    fitted_on: Iterable[Any] | None
    repaired: Outcome | None = None

    @property
    def ordered(self) -> Ready:
        """The same where words take orders alone."""
        return replace(self, fitted=self.fitted.ordered)

    @property
    def logits(self) -> bool:
        """Whether outputs are logits of classes: their calibration is measured, which no other loss has."""
        return not any(math.isnan(scores.ece) for scores in self.ends[0].values())

    @property
    def better(self) -> int:
        """Which of both models loses less: 0 or 1."""
        split = "train" if "train" in self.splits else "test"
        return min(range(2), key=lambda k: self.ends[k][split].loss)

    @property
    def share(self) -> float:
        """The part of its training that a distillation does in this report: as much as in the search."""
        done = self.done
        return 1.0 if done is None else done.share

    @property
    def done(self) -> Repaired | None:
        """What the search has repaired at λ = ½, if it has."""
        return None if self.repaired is None else self.repaired.repaired

    @property
    def judged_by(self) -> Iterable[Any]:
        """What repairs and temperatures are judged by; raises LookupError where there is nothing."""
        if self.held is None:
            raise LookupError("no samples are held out")
        return self.held

    @property
    def measured_on(self) -> Batches:
        """What a repair measures; raises LookupError where there is nothing."""
        if self.batches is None:
            raise LookupError("no training samples are known")
        return self.batches

    def decided(self, repair: str | None, repaired: Outcome | None) -> Ready:
        """With the repair that a search chose together with its method, if it did, and what it did then."""
        found = replace(self, repaired=repaired)
        if repair is None or repair == self.repair:  # asked for: on all samples that were given
            return found
        batches = self.fitted_on if repair in SAMPLES else self.batches
        return replace(
            found,
            repair=repair,
            word=repaired_label(repair, statistics=self.statistics) or self.word,
            auto=self.auto and repair not in SAMPLES,
            batches=once(few(batches, repair, found.done.samples if found.done else None, seed=self.seed)),
        )


def ready(
    a: Tensors,
    b: Tensors,
    spec: str | Path | Spec | FittedSpec | None,
    network: nn.Module,
    samples: Samples,
    rows: Rows,
    *,
    scores: Measure | None,
    output: str | int | None,
    device: str,
    seed: int,
) -> Ready:
    """Both models fitted, and measured as they were given. Raises as `report.barrier`."""
    a, b = agreed(plain([a, b]))[0]
    resolved(rows.repair_with, statistics=False, measurable=False)  # its check, before models are looked at
    fitted = resolve_words(spec, [a, b], averaged=True)
    networks.check(network, fitted.shapes)
    samples = replace(samples, train=None if samples.train is None else steady(samples.train))
    batches = samples.reset_batches if samples.reset_batches is not None else samples.train
    statistics = networks.has_running_statistics(network)
    to_try = open_to_choice(rows.repair_with, statistics=statistics) if batches is not None else ()
    repair = resolved(rows.repair_with, statistics=statistics, measurable=batches is not None)
    word = repaired_label(repair, statistics=statistics)
    if word and batches is None:
        raise UsageError(
            "the network has running statistics: give training batches to re-estimate them on"
            if word == "reset"
            else f"{word} measures channels: give training batches"
        )
    held, apart = samples.held, False
    if batches is not None:
        measured_on, held, apart = set_apart(batches, held)
        # only a choice needs samples that nothing was measured on
        batches = measured_on if repair == "auto" else batches
    scores = scores or functools.partial(evaluate, output=output, device=device)
    splits = {"test": steady(samples.test)}
    splits = {"train": samples.train} | splits if samples.train is not None else splits
    given = splits
    splits = {split: once(its) for split, its in splits.items()}
    held, batches = (None if its is None else once(its) for its in (held, batches))
    network = network.to(device)
    answers = tuple(Recording(network, output) for _ in (a, b))
    ends = tuple(_scores(it, model, splits, scores) for it, model in zip(answers, (a, b), strict=True))
    return Ready(
        (a, b),
        fitted,
        network,
        splits,
        batches,
        held,
        apart,
        samples.unseen,
        repair,
        word,
        repair == "auto",
        to_try,
        statistics,
        scores,
        output,
        device,
        seed,
        answers,
        ends,
        given,
        batches if samples.fitted_batches is None else samples.fitted_batches,
    )


def _scores(
    answers: Recording, tensors: Tensors, splits: Mapping[str, Any], scores: Measure
) -> dict[str, Scores]:
    networks.load(answers.network, tensors)
    return {split: scores(answers, its, each=True, output=None) for split, its in splits.items()}
