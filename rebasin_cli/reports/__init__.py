"""What a barrier report says, as plain values, and any document; one file a format in `formats/`.

A format is a module with

    FILENAME = "report.md"                     # its name in a report folder; None where it has none
    HELP = "Write the report as Markdown."     # of the option that writes it alone
    def render(report: Report) -> str | bytes  # everything from the report, nothing recomputed

What loss and metrics are, a report says (`Report.loss`, `Report.metrics`); barriers are in the unit of
what they measure, times in seconds.
The JSON form (`Report.to_dict`) is versioned by `SCHEMA`; `docs/report-json.md` documents it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..registry import Registry
from ..types import ACCURACY, CROSS_ENTROPY, Quantity

SCHEMA = "rebasin.report/2"
LOST = ("class_drop", "flips")  # what `Middle.lost` may have

registry = Registry("reports", "report format")


@dataclass(frozen=True)
class Curve:
    """Loss and metrics, by name, at each λ on the path (1−λ)·A + λ·B, on one split."""

    lambdas: tuple[float, ...]
    loss: tuple[float, ...]
    metrics: dict[str, tuple[float, ...]]
    samples: int

    def at(self, position: float) -> dict[str, float] | None:
        """ "loss" and the metrics measured at λ = `position`; None where that point was not measured."""
        for place, point in enumerate(self.lambdas):
            if abs(point - position) < 1e-9:
                return {name: values[place] for name, values in self.figures.items()}
        return None

    @property
    def figures(self) -> dict[str, tuple[float, ...]]:
        """The loss, and every metric."""
        return {"loss": self.loss} | self.metrics


@dataclass(frozen=True)
class Heights:
    """How much worse a figure gets on a path than the mean of its ends, and than the chord between them."""

    midpoint: float
    chord: float


@dataclass(frozen=True)
class Barrier:
    """Both definitions for the loss and, by name, for each metric (how far it gets worse than the line).

    midpoint: max_λ L(λ) − ½(L(A) + L(B)), Git Re-Basin definition 2.2; its floor is ½|L(A) − L(B)|.
    chord:    max_λ [L(λ) − (1−λ)L(A) − λL(B)]; its floor is 0.
    """

    midpoint: float
    chord: float
    metrics: dict[str, Heights] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """Both of the loss, and of every metric under its name: "accuracy_chord"."""
        told = dataclasses.asdict(self)
        metrics = {
            f"{key}_{what}": x for key, both in told.pop("metrics").items() for what, x in both.items()
        }
        return told | metrics


@dataclass(frozen=True)
class Reliability:
    """How right a model is where it is so sure: bins of equal width over confidence, NaN in empty ones.

    The reliability diagram of Guo et al. 2017, section 2, arXiv:1706.04599.
    """

    samples: tuple[float, ...] = ()
    confidence: tuple[float, ...] = ()  # mean in the bin, 0–1
    accuracy: tuple[float, ...] = ()


@dataclass(frozen=True)
class ClassShare:
    """The `accuracy` of a class at λ = ½, 0–1, with its 95 % interval (Wilson's), and the `ends`' mean of it.

    `samples` are the targets of this class, `number` is the one that targets have.
    """

    number: int
    samples: int
    accuracy: float
    interval: tuple[float, ...]
    ends: float

    @property
    def drop(self) -> float:
        """How far it falls below the mean of the endpoints; negative where it rises."""
        return self.ends - self.accuracy


@dataclass(frozen=True)
class ClassFlips:
    """Of a class, how many samples all endpoints have right (`both`), and how many of these are `lost`."""

    number: int
    both: int
    lost: int
    interval: tuple[float, ...]  # 95 %, Wilson's, of lost / both


@dataclass(frozen=True)
class Flips:
    """Negative flips: samples that all endpoints have right, and the merge has not (Yan et al. 2021, NFR).

    Of `samples` the endpoints all have `both` right; the merge has `lost` of these wrong, and has `gained`
    that none of them had. `interval` is of lost / samples, 95 % (Wilson's). `metric` is the key of the one
    that says what is right, 0 or 1 of each sample. `classes` are the five that lose the largest share of
    what was right, `which` the first thousand samples that are lost, counted from 0 in the data's order.

    Positive-Congruent Training, arXiv:2011.09161.
    """

    metric: str
    samples: int
    both: int
    lost: int
    gained: int
    interval: tuple[float, ...]
    classes: tuple[ClassFlips, ...] = ()
    which: tuple[int, ...] = ()

    @property
    def share(self) -> float:
        """Of all samples, 0–1."""
        return self.lost / self.samples


@dataclass(frozen=True)
class Middle:
    """The model at λ = ½ on one split: how far its figures can be trusted, and its confidence.

    `intervals` are (low, high), 95 % over samples drawn anew (bootstrap), of "loss", the metrics and "chord",
    the height of the loss above the chord at λ = ½; none where there is nothing to draw from.
    `classes` are the five that lose most accuracy, the most first; () where accuracy is not measured.
    `flips` are None where no metric is right or wrong of each sample.
    """

    ece: float = math.nan  # expected calibration error, 0–1; NaN where the loss is no cross-entropy
    reliability: Reliability = field(default_factory=Reliability)
    intervals: dict[str, tuple[float, ...]] = field(default_factory=dict)
    classes: tuple[ClassShare, ...] = ()
    flips: Flips | None = None

    @property
    def lost(self) -> dict[str, float]:
        """How far the class falls that loses most (`class_drop`), and the share of `flips`, where known."""
        drop = {"class_drop": self.classes[0].drop} if self.classes else {}
        return drop | ({"flips": self.flips.share} if self.flips else {})


@dataclass(frozen=True)
class Difference:
    """`row` minus `other` on one split at λ = ½, with the 95 % interval over the same samples drawn anew."""

    row: str
    other: str
    split: str
    figures: dict[str, float]  # "loss", and the metrics
    intervals: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OverPairs:
    """A row over several pairs of models: mean and Student's 95 % interval at λ = ½, on one split."""

    row: str
    split: str
    pairs: int
    mean: dict[str, float]  # "loss", the metrics, "chord" (the barrier)
    intervals: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One way of joining the two models: "naive", "aligned", "aligned + reset", "naive + reset", …

    A row that is measured at λ = ½ alone has a curve of three points: there, and at both ends as given.
    """

    name: str
    curves: dict[str, Curve]  # by split: "train", "test"
    barriers: dict[str, Barrier]  # by split
    shipped: bool = False  # the row that `merge` with the same options would write
    control: bool = False
    middle: dict[str, Middle] = field(default_factory=dict)  # by split
    details: dict[str, Any] = field(
        default_factory=dict
    )  # {"temperature"}, {"cost": networks run a sample}, …

    def lost(self, key: str) -> dict[str, float]:
        """One of LOST by split, where it is known."""
        found = {split: middle.lost for split, middle in self.middle.items()}
        return {split: its[key] for split, its in found.items() if key in its}


@dataclass(frozen=True)
class Gate:
    """One threshold: `text` as the user wrote it, what was measured, and whether it holds."""

    text: str
    measured: float
    limit: float
    met: bool
    detail: str  # a sentence: row, split, definition
    wanted: str = ""  # the limit in words: "at most 0.05 nats"


@dataclass(frozen=True)
class Measured:
    """What figures of several models were measured of: a barrier report and a comparison begin with this."""

    rebasin: str  # version
    command: str
    seed: int
    inputs: tuple[dict[str, Any], ...]  # {"file", "sha256", "recorded": provenance or None} per model
    spec: dict[str, Any]  # {"name", "sha256", "words", "log10_symmetries", "moved_share"}
    data: dict[str, Any]  # {"name", "normalization", "samples": {"train", "test"}, "full", "scores"}


@dataclass(frozen=True)
class Report(Measured):
    """Everything a reader needs to believe the figures, and to measure them again."""

    match: dict[str, Any]  # {"method", "sweeps", "objective_before", "objective_after", …}
    proof: dict[str, Any]  # "status" (proven, skipped, unavailable, unproven), "largest_difference", "reason"
    # {"name", "train": {"loss", metrics by name, "ece", "reliability", "intervals"}, "test": {…}} per model
    endpoints: tuple[dict[str, Any], ...]
    rows: tuple[Row, ...]
    loss: Quantity = CROSS_ENTROPY
    metrics: tuple[Quantity, ...] = (ACCURACY,)  # the first is what is meant where none is named
    gates: tuple[Gate, ...] = ()
    # What `--baseline` named: {"file", "sha256"}, or {"file", "missing": True} where that was accepted
    baseline: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # plain sentences, most important first
    differences: tuple[Difference, ...] = ()  # of rows that are worth comparing
    choice: dict[str, Any] = field(default_factory=dict)  # of --repair auto: {"chosen", "losses", …}
    pairs: tuple[dict[str, Any], ...] = ()  # {"inputs", "rows": {name: {split: {"loss", …}}}}, of --pair
    over_pairs: tuple[OverPairs, ...] = ()
    # {"word", "units", "dead", "before": {"mean", "std"}, "after": {…}}: matched correlation
    signature: tuple[dict[str, Any], ...] = ()
    # Of every test sample, to be compared with by pairs: {"samples", "count", "chord", metrics by name}
    each: dict[str, Any] = field(default_factory=dict)
    # Wall times in seconds, {"match", "total"}: all that differs between two identical runs
    times: dict[str, float] = field(default_factory=dict)
    schema: str = field(default=SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; the figures of metrics stand beside those of the loss, under their names."""
        fields = dataclasses.asdict(self)
        return fields | {
            "rows": [
                row
                | {
                    "curves": {split: _curve(curve) for split, curve in row["curves"].items()},
                    "barriers": {split: each.figures for split, each in own.barriers.items()},
                    "middle": {split: _middle(each) for split, each in row["middle"].items()},
                }
                for row, own in zip(fields["rows"], self.rows, strict=True)
            ],
            "differences": [_difference(each) for each in fields["differences"]],
        }

    @property
    def keys(self) -> dict[str, str]:
        """What is measured, by its key in tables of figures: the name of each, the loss first."""
        return {"loss": "loss"} | {metric.key: metric.name for metric in self.metrics}

    @property
    def classifies(self) -> bool:
        """Whether its loss is the cross-entropy of class numbers: then temperatures mean something."""
        return self.loss == CROSS_ENTROPY

    def difference(self, row: str, other: str, split: str = "test") -> Difference | None:
        """`row` minus `other`, whichever way round it is held; None where they were not compared."""
        for found in self.differences:
            if found.split == split and {found.row, found.other} == {row, other}:
                return found if found.row == row else _turned(found)
        return None

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    @property
    def shipped(self) -> Row:
        return next(row for row in self.rows if row.shipped)


def _turned(one: Difference) -> Difference:
    intervals = {name: tuple(-value for value in reversed(both)) for name, both in one.intervals.items()}
    figures = {name: -value for name, value in one.figures.items()}
    return Difference(one.other, one.row, one.split, figures, intervals)


def _curve(curve: dict[str, Any]) -> dict[str, Any]:
    return {
        "lambdas": curve["lambdas"],
        "loss": curve["loss"],
        **curve["metrics"],
        "samples": curve["samples"],
    }


def _middle(middle: dict[str, Any]) -> dict[str, Any]:
    """Without a calibration, classes and flips that were not measured."""
    unknown = [key for key in ("classes", "flips") if not middle[key]]
    middle = {key: its for key, its in middle.items() if key not in unknown}
    if math.isnan(middle["ece"]) and not middle["reliability"]["samples"]:
        return {key: its for key, its in middle.items() if key not in ("ece", "reliability")}
    return middle


def _difference(one: dict[str, Any]) -> dict[str, Any]:
    figures, intervals = one.pop("figures"), one.pop("intervals")
    told: dict[str, Any] = one | figures
    return told | {f"{key}_interval": intervals.get(key, ()) for key in figures}


def barrier_of(curve: Curve, metrics: Sequence[Quantity] = (ACCURACY,)) -> Barrier:
    """Both barriers of a curve, in loss and in every metric; the curve must contain λ = 0 and λ = 1.

    Git Re-Basin definition 2.2 (midpoint); Linear Mode Connectivity modulo permutation symmetries (chord).
    """
    first, last = curve.lambdas.index(0.0), curve.lambdas.index(1.0)

    def height(values: Sequence[float], sign: float) -> Heights:
        a, b = values[first], values[last]
        midpoint = max(sign * (value - (a + b) / 2) for value in values)
        chord = max(sign * (v - (1 - t) * a - t * b) for t, v in zip(curve.lambdas, values, strict=True))
        return Heights(midpoint, chord)

    signs = {metric.key: metric.sign for metric in metrics}
    loss = height(curve.loss, 1.0)
    found = {key: height(values, signs.get(key, -1.0)) for key, values in curve.metrics.items()}
    return Barrier(loss.midpoint, loss.chord, found)


TOLERANCE = 0.01  # in the unit of the loss: how much worse than its baseline a barrier is still as good
