"""A report held against an earlier one: is what would be shipped really worse, or only by chance?

Compared are the shipped rows at λ = ½ on test data, where everything is a mean over samples: the height of
the loss above the chord, and every metric. A gate is not met where it is worse by more than a tolerance *and*
the difference is no chance: its one-sided 99 % confidence bound is above 0 (docs/report.md).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import UsageError
from ..reports import TOLERANCE, Gate, Report, Row
from ..reports.format import MIDPOINT, number
from ..runtime.text import clean
from ..types import Quantity

METRIC_TOLERANCE = 0.005  # of a share; of another metric, of its value in the baseline
SURE = 0.99  # one-sided: of equal models about one gate in a hundred is missed
Z95 = 1.959964  # half a 95 % interval, in standard errors


@dataclass(frozen=True)
class _Figure:
    """What is compared: words for a sentence, its unit, 1 where larger is worse, what rounding may change."""

    key: str
    words: str
    unit: str
    worse: float
    rounding: float
    slack: float | None = None  # a share of the figure where None

    @staticmethod
    def all(report: Report, tolerance: float = TOLERANCE) -> list[_Figure]:
        height = "the height of the loss above the chord at λ=½"
        found = [_Figure("chord", height, report.loss.in_unit, 1, 5e-8, tolerance)]
        for metric in report.metrics:
            known = (1e-12, METRIC_TOLERANCE) if metric.is_share else (5e-8, None)
            found.append(_Figure(metric.key, f"{metric.name} at λ=½", metric.in_unit, metric.sign, *known))
        return found


NEXT = "Write a new baseline with: rebasin barrier … --report FOLDER"


@dataclass(frozen=True)
class Subject:
    """What the figures of a report are of. Figures of different subjects say nothing of each other."""

    data: str | None
    normalization: str | None
    samples: int | None  # of the test split
    spec: str | None  # digest
    symmetries: float | None  # log10: equal specs fit networks of any width
    scores: Mapping[str, Any] = field(default_factory=dict)  # a loss, a metric, an output of the user's own
    digest: str | None = None  # of the test samples; None where they are other ones each time, or not told
    quantities: tuple[Quantity, ...] | None = None  # what is measured, the loss first; None: not known yet
    open: bool = False  # more may be measured than `quantities` say

    @classmethod
    def of(cls, report: Report) -> Subject:
        return cls(
            report.data.get("name"),
            report.data.get("normalization"),
            _part(report.data, "samples").get("test"),
            report.spec.get("sha256"),
            report.spec.get("log10_symmetries"),
            _part(report.data, "scores"),
            report.data.get("sha256"),
            (report.loss, *report.metrics),
        )

    def unlike(self, other: Subject) -> list[str]:
        """Where they differ, a sentence each; `other` is the run at hand."""
        named = {
            "the data set": (self.data, other.data),
            "the normalisation of inputs": (self.normalization, other.normalization),
            "the number of test samples (--limit)": (self.samples, other.samples),
            "the spec": (self.spec, other.spec),
            "the widths of the network": (self.symmetries, other.symmetries),
        }
        named |= {
            f"--{key}": (self.scores.get(key), other.scores.get(key))
            for key in sorted({*self.scores, *other.scores})
        }
        if self.quantities is not None and other.quantities is not None:
            here, there, known = other.quantities, self.quantities, {one.key for one in other.quantities}
            if other.open and known <= {one.key for one in there}:  # what else is there may come here, too
                there = tuple(one for one in there if one.key in known)
            for what, words in (("what is measured", _told), ("what is better", _better)):
                named[what] = (", ".join(map(words, there)), ", ".join(map(words, here)))
        if self.digest is not None and other.digest is not None:
            named["the test samples themselves (SHA-256)"] = (self.digest, other.digest)
        apart = {what: both for what, both in named.items() if both[0] != both[1]}
        return [f"{what}: {clean(one)} there, {clean(two)} here" for what, (one, two) in apart.items()]


@dataclass(frozen=True)
class Baseline:
    """What `--baseline` names: its `report`, with the digest of the file; None where it is not there yet."""

    file: str
    report: Report | None = None
    sha256: str = ""

    @property
    def account(self) -> dict[str, Any]:
        """What a report says of it."""
        return {"file": self.file} | ({"missing": True} if self.report is None else {"sha256": self.sha256})


def _part(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What a file says there; {} where it says something else than a report does."""
    found = content.get(key)
    return found if isinstance(found, Mapping) else {}


def check_baseline(baseline: Report, subject: Subject | None = None, *, named: str = "--baseline") -> None:
    """Raise UsageError if `baseline` holds nothing to compare with, or is not of `subject`."""
    if subject is not None and (problems := Subject.of(baseline).unlike(subject)):
        raise UsageError("--baseline is of something else than this run", problems=problems, hint=NEXT)
    row = shipped(baseline, named)
    for figure in _Figure.all(baseline):
        if not math.isfinite(at_middle(row, figure.key)):
            raise UsageError(f"{named} has no finite test {figure.key} for {clean(row.name)!r}", hint=NEXT)


def against(baseline: Report, report: Report, tolerance: float = TOLERANCE) -> list[Gate]:
    """A gate for the loss and for each metric. Raises as `check_baseline` does."""
    check_baseline(baseline, Subject.of(report))
    pairs = differences(baseline, report)
    return [_judged(baseline, report, one, pairs.get(one.key)) for one in _Figure.all(report, tolerance)]


def _judged(baseline: Report, report: Report, of: _Figure, pairs: np.ndarray | None) -> Gate:
    figure, words, unit, worse, rounding = of.key, of.words, of.unit, of.worse, of.rounding
    old, new = shipped(baseline, "--baseline"), shipped(report, "--baseline")
    before, now = at_middle(old, figure), at_middle(new, figure)
    slack = METRIC_TOLERANCE * abs(before) if of.slack is None else of.slack
    wanted = (
        f"at {'most' if worse > 0 else 'least'} the baseline's {number(before)}{unit} "
        f"{'+' if worse > 0 else '−'} {number(slack)}, or a difference that may be chance"
    )
    subject, limit = f"{new.name}, test: {words}", before + worse * slack
    if not math.isfinite(now):
        told = f"{subject} was not measured or is not a number"
        return Gate(f"--baseline {figure}", now, limit, False, told, wanted)
    by = worse * (now - before)  # how much worse
    if pairs is not None and not _fit(pairs, now - before):
        pairs = None
    error, how = _error(old, new, figure, pairs)
    beyond = by > slack + rounding
    sure = by - error > rounding
    side = "worse" if by > 0 else "better"
    shown = f"{subject} is {number(now)}{unit}, {number(abs(by))} {side} than the baseline's {number(before)}"
    if by == 0:
        shown = f"{subject} is {number(now)}{unit}, as in the baseline"
    if old.name != new.name:
        how += f"; the baseline's row is {clean(old.name)!r}"
    if not beyond:
        told = f"within the tolerance of {number(slack)} ({how})"
    elif sure:
        told = f"more than the tolerance of {number(slack)} ({how})"
        if error:
            told = f"a real difference, and {told[:-1]}, 99 % sure of {number(by - error)} or more)"
    else:
        told = f"which may be chance ({how}: sure only from {number(error)} on)"
    return Gate(f"--baseline {figure}", now, limit, not (beyond and sure), f"{shown}: {told}", wanted)


def _fit(pairs: np.ndarray, difference: float) -> bool:
    """Whether the samples' differences are those of the figures, up to numbers of two bytes."""
    return abs(float(pairs.mean()) - difference) <= 1e-3 * (1 + float(np.abs(pairs).mean()))


def _error(old: Row, new: Row, figure: str, pairs: np.ndarray | None) -> tuple[float, str]:
    """How far the difference lies from 0 where it is just sure, and how that is known."""
    if pairs is not None:
        from scipy.stats import t

        deviation = float(pairs.std(ddof=1)) / math.sqrt(len(pairs))
        return float(t.ppf(SURE, len(pairs) - 1)) * deviation, f"paired on {number(len(pairs))} samples"
    known = [row.middle["test"].intervals.get(figure) if "test" in row.middle else None for row in (old, new)]
    both = [interval for interval in known if interval]
    if len(both) == 2 and all(map(math.isfinite, [*both[0], *both[1]])):
        from scipy.stats import norm

        errors = [(high - low) / (2 * Z95) for low, high in both]
        return float(norm.ppf(SURE)) * math.hypot(*errors), "by both intervals, not paired"
    return 0.0, "no intervals: by the tolerance alone"


def at_middle(row: Row, figure: str, split: str = "test") -> float:
    """Loss, a metric or the height of the loss above the chord at λ = ½; NaN where it was not measured."""
    curve = row.curves.get(split)
    if curve is None or (found := curve.at(MIDPOINT)) is None:
        return math.nan
    if figure != "chord":
        return found.get(figure, math.nan)
    first, last = curve.at(0.0), curve.at(1.0)
    return math.nan if first is None or last is None else found["loss"] - (first["loss"] + last["loss"]) / 2


def _better(quantity: Quantity) -> str:
    return f"{'larger' if quantity.larger_is_better else 'smaller'} {quantity.name}"


def _told(quantity: Quantity) -> str:
    """A quantity in a sentence."""
    return f"{quantity.name}{f' ({quantity.unit})' * bool(quantity.unit)}"


def shipped(report: Report, option: str) -> Row:
    for row in report.rows:
        if row.shipped:
            return row
    raise UsageError(f"{option}: the report has no row that would be shipped")


def differences(old: Report, new: Report) -> dict[str, np.ndarray]:
    """`new` minus `old` of every sample by figure, float64; {} where they are not of the same samples."""
    one, two = old.each, new.each
    if not one.get("samples") or one["samples"] != two.get("samples"):
        return {}
    found = {}
    for name in sorted(one.keys() & two.keys() - {"samples", "count"}):
        a, b = _unpacked(one, name), _unpacked(two, name)
        if a is None or b is None or len(a) != len(b):
            return {}
        found[name] = b - a
    return found


def _unpacked(each: Mapping[str, Any], name: str) -> np.ndarray | None:
    """None where a file says something else than `samples.kept` did."""
    try:
        values = np.frombuffer(base64.b64decode(each[name], validate=True), dtype="<f2").astype(np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    whole = len(values) == each.get("count") and len(values) > 1 and bool(np.isfinite(values).all())
    return values if whole else None
