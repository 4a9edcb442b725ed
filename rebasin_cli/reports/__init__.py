"""What a barrier report says, as plain values, and any document; one file a format in `formats/`.

A format is a module with

    FILENAME = "report.md"                     # its name in a report folder; None where it has none
    HELP = "Write the report as Markdown."     # of the option that writes it alone
    def render(report: Report) -> str | bytes  # everything from the report, nothing recomputed

Loss in nats per sample, accuracy in 0–1, barriers in the unit of what they measure, times in seconds.
The JSON form (`Report.to_dict`) is versioned by `SCHEMA`; `docs/report-json.md` documents it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..registry import Registry

SCHEMA = "rebasin.report/2"

registry = Registry("reports", "report format")


@dataclass(frozen=True)
class Curve:
    """Loss and accuracy at each λ on the path (1−λ)·A + λ·B, on one split."""

    lambdas: tuple[float, ...]
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]
    samples: int

    def at(self, position: float) -> tuple[float, float] | None:
        """Loss and accuracy measured at λ = `position`; None where that point was not measured."""
        for point, loss, accuracy in zip(self.lambdas, self.loss, self.accuracy, strict=True):
            if abs(point - position) < 1e-9:
                return loss, accuracy
        return None


@dataclass(frozen=True)
class Barrier:
    """Both definitions for loss (nats) and for accuracy (0–1; how far it falls below the reference line).

    midpoint: max_λ L(λ) − ½(L(A) + L(B)), Git Re-Basin definition 2.2; its floor is ½|L(A) − L(B)|.
    chord:    max_λ [L(λ) − (1−λ)L(A) − λL(B)]; its floor is 0.
    """

    midpoint: float
    chord: float
    accuracy_midpoint: float
    accuracy_chord: float


@dataclass(frozen=True)
class Reliability:
    """How right a model is where it is so sure: bins of equal width over confidence, NaN in empty ones.

    The reliability diagram of Guo et al. 2017, section 2, arXiv:1706.04599.
    """

    samples: tuple[float, ...] = ()
    confidence: tuple[float, ...] = ()  # mean in the bin, 0–1
    accuracy: tuple[float, ...] = ()


@dataclass(frozen=True)
class Middle:
    """The model at λ = ½ on one split: how far its figures can be trusted, and its confidence.

    `intervals` are (low, high), 95 % over samples drawn anew (bootstrap), of "loss", "accuracy" and "chord",
    the height of the loss above the chord at λ = ½; none where there is nothing to draw from.
    """

    ece: float  # expected calibration error, 0–1; NaN where outputs are no logits
    reliability: Reliability = field(default_factory=Reliability)
    intervals: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """`row` minus `other` on one split at λ = ½, with the 95 % interval over the same samples drawn anew."""

    row: str
    other: str
    split: str
    loss: float
    accuracy: float
    loss_interval: tuple[float, ...] = ()
    accuracy_interval: tuple[float, ...] = ()


@dataclass(frozen=True)
class OverPairs:
    """A row over several pairs of models: mean and Student's 95 % interval at λ = ½, on one split."""

    row: str
    split: str
    pairs: int
    mean: dict[str, float]  # "loss", "accuracy", "chord" (the barrier)
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
class Report:
    """Everything a reader needs to believe the figures, and to measure them again."""

    rebasin: str  # version
    command: str
    seed: int
    inputs: tuple[dict[str, Any], ...]  # {"file", "sha256", "recorded": provenance or None} per model
    spec: dict[str, Any]  # {"name", "sha256", "words", "log10_symmetries", "moved_share"}
    data: dict[str, Any]  # {"name", "normalization", "samples": {"train", "test"}, "full", "scores"}
    match: dict[str, Any]  # {"method", "sweeps", "objective_before", "objective_after", …}
    proof: dict[str, Any]  # {"status": "proven"|"skipped"|"unavailable", "largest_difference", "reason"}
    # {"name", "train": {"loss", "accuracy", "ece", "reliability", "intervals"}, "test": {…}} per model
    endpoints: tuple[dict[str, Any], ...]
    rows: tuple[Row, ...]
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
    # Of every test sample, to be compared with by pairs: {"samples", "count", "chord", "accuracy"}
    each: dict[str, Any] = field(default_factory=dict)
    # Wall times in seconds, {"match", "total"}: all that differs between two identical runs
    times: dict[str, float] = field(default_factory=dict)
    schema: str = field(default=SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

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
    def back(interval: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(-value for value in reversed(interval))

    intervals = (back(one.loss_interval), back(one.accuracy_interval))
    return Difference(one.other, one.row, one.split, -one.loss, -one.accuracy, *intervals)


def barrier_of(curve: Curve) -> Barrier:
    """Both barriers of a curve, in loss and in accuracy; the curve must contain λ = 0 and λ = 1.

    Git Re-Basin definition 2.2 (midpoint); Linear Mode Connectivity modulo permutation symmetries (chord).
    """
    first, last = curve.lambdas.index(0.0), curve.lambdas.index(1.0)

    def height(values: Sequence[float], sign: float) -> tuple[float, float]:
        a, b = values[first], values[last]
        midpoint = max(sign * (value - (a + b) / 2) for value in values)
        chord = max(sign * (v - (1 - t) * a - t * b) for t, v in zip(curve.lambdas, values, strict=True))
        return midpoint, chord

    return Barrier(*height(curve.loss, 1.0), *height(curve.accuracy, -1.0))


SAME = 1e-9  # what may part a barrier of a file from that of its curve, relative to 1
TOLERANCE = 0.01  # nats: how much worse than its baseline a barrier is still as good


def inconsistent(report: Report) -> list[str]:
    """What a report says of its rows that cannot all be so, a sentence each: somebody changed it.

    Names are different, one row at most is shipped, and barriers are those of the curves.
    """
    names = [row.name for row in report.rows]
    found = [f"two rows are called {name!r}" for name in dict.fromkeys(names) if names.count(name) > 1]
    shipped = [row.name for row in report.rows if row.shipped]
    found += [f"{len(shipped)} rows would be shipped: {', '.join(shipped)}"] if len(shipped) > 1 else []
    for row in report.rows:
        for split, curve in row.curves.items():
            if split in row.barriers and not _is_of(row.barriers[split], curve):
                found.append(f"{row.name}, {split}: its barriers are not those of its curve")
    return found


def _is_of(barrier: Barrier, curve: Curve) -> bool:
    """Whether these are the barriers of this curve, as far as it has its ends and nothing but numbers."""
    try:
        pairs = zip(dataclasses.astuple(barrier), dataclasses.astuple(barrier_of(curve)), strict=True)
    except ValueError:  # no ends, or another number of values
        return False
    return all(
        one == two or (math.isnan(one) and math.isnan(two)) or abs(one - two) <= SAME * (1 + abs(two))
        for one, two in pairs
    )
