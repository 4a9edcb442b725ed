"""`rebasin eval`: what one model is worth on one split."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from .. import networks
from ..datasets import SPLITS
from ..errors import UsageError, unknown
from ..measure import audit
from ..measure import gates as model_gates
from ..measure.intervals import share_interval
from ..measure.thresholds import RIGHT
from ..networks.evaluation import Scores
from ..registry.options import PLAIN, READS, again, argument, option
from ..registry.results import IN_JSON_ONLY, NAMED, UNSET, Plan, Result, Unset
from ..reports import Flips, verdicts
from ..reports.accounts import describe_quantities
from ..reports.format import FLIPS
from ..reports.github import told_as_one
from ..runtime.ranks import ALONE, Ranks
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, Gates, Screen
from ..session.request import Subjects
from ..session.samples import quantities_of
from ..session.session import Session
from ..session.subjects import Calibration, Choosing, DataSet, Loading, Running, Samples, Scoring
from .verbs import endpoints, needs, plans
from .verbs.ranks import check_measured

PANEL = "Measure"
TOGETHER = True
FIGURES = True
SHOWN = 5  # classes, of those that are worst


@dataclass(frozen=True, kw_only=True)
class Eval(Loading, Running, DataSet, Samples, Choosing, Scoring, Calibration, Screen):
    """Measure loss, metrics and, of class numbers, expected calibration error; with --json its bins, too.

    Without --loss and --metric that is cross-entropy in nats and accuracy, 0–1.

    With --gate exit code 1 where a figure misses its limit.

    Processes that are started together share the batches: torchrun … -m rebasin_cli eval …

    Example: rebasin eval merged.safetensors --data cifar10
    """

    model: Path = argument("MODEL", role=READS)
    split: str = option("test", "test or train.", role=PLAIN)
    against: tuple[Path, ...] = option(
        (),
        "A model that this one was merged from: samples that all of these have right, and this one has not, "
        "are counted as negative flips; repeatable.",
        metavar="FILE",
        role=READS,
    )
    gate: tuple[str, ...] = again(
        Gates.gate,
        (),
        help="Such as 'ece <= 0.05', 'accuracy >= 0.9' or 'negative flips <= 1%' (--against); repeatable.",
        metavar="'FIGURE <= X'",
        kind="figure",
    )
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


@dataclass(frozen=True, kw_only=True)
class EvalResult(Result):
    """What one model is worth on one split: its `loss`, a mean over samples, and its metrics by name.

    `measured` says what these are: names, units, which way is better, where they lie. `held_out` says which
    samples of the split were left out. Of the expected calibration error `bins` is the number, and
    `reliability` what is in them: their samples, mean confidence and accuracy, None in empty ones. `classes`
    are every class with its samples, its accuracy and that one's 95 % interval, the worst first. `flips` are
    the samples that all of --against have right, and this model has not. `gates` are those that were asked
    for, each with what was `measured` and whether it is `met`.
    """

    file: str
    data: str
    split: str
    held_out: Mapping[str, Any] | Unset = UNSET
    loss: float
    metrics: Mapping[str, float] = field(metadata=NAMED)
    samples: int
    ece: float | Unset = UNSET
    measured: Mapping[str, Any] = field(default_factory=dict, metadata=IN_JSON_ONLY)
    bins: int | Unset = UNSET
    reliability: Mapping[str, list[float | None]] | Unset = field(default=UNSET, metadata=IN_JSON_ONLY)
    classes: list[Mapping[str, Any]] | Unset = field(default=UNSET, metadata=IN_JSON_ONLY)
    worst_classes: Mapping[str, str] | Unset = UNSET
    flips: Mapping[str, Any] | Unset = field(default=UNSET, metadata=IN_JSON_ONLY)
    negative_flips: str | Unset = UNSET
    gates: list[Mapping[str, Any]] | Unset = UNSET

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        own = {each.name for each in fields(cls)}
        return super().of({**values, "metrics": {key: values[key] for key in values.keys() - own}})

    @property
    def _found(self) -> Sequence[verdicts.GateResult]:
        return () if isinstance(self.gates, Unset) else verdicts.of_values(self.gates)

    def warnings(self) -> Sequence[Any]:
        return () if told_as_one() else self._found  # else the run tells

    def end(self) -> None:
        verdicts.raise_unmet(self._found)


def run(asked: Eval, listener: Listener = SILENT, ranks: Ranks = ALONE) -> EvalResult | Plan:
    """Measure one model on one split, and hold its figures against gates, which are read before.

    One that is not met is raised only by the result's `end`. Several `ranks` call this alike, and take turns
    with the batches.
    """
    subjects = subjects_of(asked)
    loss, *metrics = quantities_of(subjects.data)
    held_to = {"against": bool(asked.against)}
    limits = [model_gates.parse(text, asked.split, loss, metrics, **held_to) for text in asked.gate]
    if asked.dry_run:
        session = _session(asked.model, asked.split, listener, subjects, asked.against, ranks)
        return Plan(plans.of_models(session.named, needs.of_run(session)))
    found = measured(asked.model, asked.split, listener, subjects, asked.against, ranks)
    if not limits:
        return found
    figures = {"loss": found.loss, **found.metrics}
    figures |= {} if isinstance(found.ece, Unset) else {"ece": found.ece}
    figures |= {} if isinstance(found.classes, Unset) else {"class accuracy": found.classes[0]["accuracy"]}
    figures |= {} if isinstance(found.flips, Unset) else {FLIPS: found.flips["share"]}
    held = model_gates.held(limits, figures, asked.split)
    return dataclasses.replace(found, gates=list(map(dataclasses.asdict, held)))


def _session(
    path: Path,
    split: str,
    listener: Listener,
    subjects: Subjects,
    against: Sequence[Path],
    ranks: Ranks,
) -> Session:
    """The models' headers read, and nothing that cannot be held. Raises UsageError for an unknown split."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    data = dataclasses.replace(subjects.data, full=True)
    session = Session(
        "eval", [path, *against], listener, dataclasses.replace(subjects, data=data), ranks=ranks
    )
    needs.check_run(session)
    return session


def measured(
    path: Path,
    split: str,
    listener: Listener,
    subjects: Subjects,
    against: Sequence[Path] = (),
    ranks: Ranks = ALONE,
) -> EvalResult:
    """What one model is worth on one split, also `against` those that it was merged from.

    Raises UsageError for an unknown split and without a network, DataError for a trained model at chance.
    """
    session = _session(path, split, listener, subjects, against, ranks)
    scorer, (model, *others) = session.scores, session.models
    module = session.network_alone
    samples = session.open_splits(split)[split]
    check_measured(session, {split: samples})
    session.look_at_inputs(session.splits, module)
    module = networks.load(module, model).to(session.device)
    scores = scorer(module, samples, each=bool(others))
    for doubt in endpoints.below_record(model, scores, samples, session.asked.data):
        session.say(f"warning: {doubt}")
    ends = [scorer(networks.load(module, other), samples, each=True) for other in others]
    if split == "test":
        endpoints.check(session, merges=True)({"test": [scores, *ends]})
    flips: Flips | None = None
    if others:
        if (flips := audit.flips(scores, ends)) is None:
            raise UsageError(
                "--against: nothing tells which samples are right",
                hint=f"Name {RIGHT}",
            )
    without = UNSET if session.held_out is None else dict(session.held_out.account())
    return EvalResult(
        file=str(path),
        data=samples.name,
        split=split,
        held_out=without,
        loss=scores.loss,
        metrics=dict(scores.metrics),
        samples=scores.samples,
        ece=scores.ece if scores.bins else UNSET,
        measured=describe_quantities(scores.quantities),
        bins=len(scores.bins[0]) if scores.bins else UNSET,
        reliability=_reliability(scores) if scores.bins else UNSET,
        classes=(classes := _classes(scores)) or UNSET,
        worst_classes=_worst(classes) or UNSET,
        flips=UNSET if flips is None else dataclasses.asdict(flips) | {"share": flips.share},
        negative_flips=UNSET if flips is None else _told(flips),
    )


def _classes(scores: Scores) -> list[Mapping[str, Any]]:
    """The accuracy of every class that has samples, with its 95 % interval (Wilson's), the worst first."""
    found: list[Mapping[str, Any]] = []
    for number, (count, right) in enumerate(scores.classes):
        if count:
            interval = list(share_interval(right, count))
            found.append({"class": number, "samples": count, "accuracy": right / count, "interval": interval})
    return sorted(found, key=lambda one: one["accuracy"])


def _told(flips: Flips) -> str:
    low, high = flips.interval
    return (
        f"{flips.lost} of {flips.samples} samples, {flips.share:.4f} ({low:.3f}–{high:.3f}), which all of "
        "--against have right"
    )


def _worst(classes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Those that a person is shown, where there are several."""
    if len(classes) < 2:
        return {}
    return {
        str(one["class"]): f"{one['accuracy']:.4f} ({one['interval'][0]:.3f}–{one['interval'][1]:.3f})"
        for one in classes[:SHOWN]
    }


def _reliability(scores: Scores) -> dict[str, list[float | None]]:
    """The bins of the calibration error: their samples, mean confidence and accuracy, None in empty ones."""
    names = ("samples", "confidence", "accuracy")
    return {
        name: [None if value != value else value for value in row]
        for name, row in zip(names, scores.bins, strict=True)
    }
