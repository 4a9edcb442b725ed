"""Thresholds held against a finished report: what a CI run asks before it lets a merge through.

`thresholds` reads them; `check_gate_names` finds mistakes before an hour of measuring, as `check_baseline`
does for `baseline`; `evaluate_gates` holds the thresholds against the report, and `judged` puts what it found
into it: right after measuring, or years later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import RebasinError, UsageError, near
from ..reports import LOST, TOLERANCE, Gate, Report, Row
from ..reports.format import FLIPS, number
from ..types import ACCURACY, CROSS_ENTROPY, Quantity
from .baseline import Baseline, against, at_middle, shipped
from .thresholds import (
    FLIPPED,
    OF_FLIPS,
    PLAIN,
    SHIPPED,
    SPLITS,
    Figure,
    Language,
    Threshold,
    check_limit,
    compared,
    joined,
    limit_of,
    misread,
    parse_gate,
    shown,
    stored,
    vocabulary,
    wrong,
)


def figures_of(loss: Quantity, metrics: Sequence[Quantity], *, against: bool = False) -> dict[str, Figure]:
    """What there is of one model, by the words of a gate; `against` others its negative flips, too."""
    found = {"loss": Figure("loss", "loss", loss.in_unit)}
    for metric in metrics:
        told: dict[str, Any] = {
            "unit": metric.in_unit,
            "larger": metric.larger_is_better,
            "share": metric.is_share,
        }
        found[metric.key] = Figure(metric.key, metric.name, key=metric.key, **told)
    if loss == CROSS_ENTROPY:
        found["ece"] = Figure("ece", "expected calibration error", share=True, key="ece")
    if ACCURACY in metrics:
        found["class accuracy"] = Figure(
            "class accuracy", "the accuracy of the worst class", "", True, True, "class accuracy"
        )
    if against:
        found[FLIPS] = found["forgotten"] = Figure(FLIPS, FLIPPED, **OF_FLIPS)
    return found


REPAIRED = " + "  # in the names of rows whose repair, or temperature, a search may decide

# What a figure may miss its limit by, by its unit. Accuracies are multiples of 1/samples: a drop of exactly
# the limit must not miss it by the last bit. Losses are of float32: between equal models they rise by 1e-8.
SHARE, OTHER = 1e-12, 5e-8
HEIGHTS = ("midpoint", "chord")  # of a whole path


@dataclass(frozen=True)
class GateSet:
    """All gates that a command is asked for. Raises UsageError for a tolerance that cannot be meant."""

    gates: tuple[Threshold, ...] = ()
    baseline: Baseline | None = None
    baseline_tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        check_tolerance(self.baseline_tolerance)

    @property
    def any(self) -> bool:
        """Whether anything is asked for at all."""
        return bool(self.gates) or self.baseline is not None


def check_tolerance(tolerance: float) -> None:
    """Raise UsageError for a --baseline-tolerance that cannot be meant: NaN, infinite or below 0."""
    if not (math.isfinite(tolerance) and tolerance >= 0):
        expected = "a number" if not math.isfinite(tolerance) else "0 or more"
        raise UsageError(f"--baseline-tolerance: the limit is {tolerance:g}, expected {expected}")


def judged(report: Report, asked: GateSet) -> Report:
    """The report with these gates in the place of those that it had, all held against its figures."""
    baseline = asked.baseline
    before = baseline.report if baseline else None
    found = evaluate_gates(report, asked.gates, before, asked.baseline_tolerance)
    return replace(report, gates=found, baseline=baseline.account if baseline else {})


def contradicted(report: Report) -> Iterator[str]:
    """A sentence for every gate of a report that its own figures say something else of.

    Gates against a baseline are not looked at: what they were held against is not in the report.
    """
    for gate in report.gates:
        if gate.text.partition(" ")[0] == "--baseline":
            continue
        try:
            known = stored(gate.text, Language.of(report))
            (again,) = evaluate_gates(report, [replace(known, limit=gate.limit)])
        except RebasinError as error:
            yield f"{gate.text}: {error.message}"
            continue
        if not known.asks(gate.limit):
            yield f"{gate.text}: it was held against {gate.limit:g}"
        elif again.met != gate.met:
            yield f"{gate.text}: it says {'met' if gate.met else 'not met'}, and {again.detail}"


def check_gate_names(
    gates: Iterable[Threshold], rows: Iterable[str], splits: Iterable[str], language: Language = PLAIN
) -> None:
    """Raise UsageError, with the nearest names, for gates on rows or splits that will not be measured.

    And for one whose words are the name of another row as well.
    """
    rows, splits = [SHIPPED, *rows], list(splits)
    found = [problem for gate in gates for problem in _misnamed(gate, rows, splits, language)]
    if len(found) == 1:
        raise found[0]
    if found:
        problems = [f"{error.message}. {error.hint}" for error in found]
        there = vocabulary(rows[1:], splits, language)
        raise UsageError("gates ask for what is not measured", problems=[*problems, *there])


def _misnamed(
    gate: Threshold, rows: Sequence[str], splits: Sequence[str], language: Language
) -> Iterator[UsageError]:
    for kind, name, known in (("row", gate.row, rows), ("split", gate.split, splits)):
        if name not in known:
            meant = [*known, *language.all * bool(gate.words)]
            told: dict[str, Any] = {"rows": rows[1:], "splits": splits, "language": language}
            yield wrong(gate.text, f"unknown {kind} {name!r}", name, meant, **told)
    yield from misread(gate, rows, language)


def check_measured(report: Report, asked: GateSet) -> None:
    """Raise UsageError for gates on rows or splits that the report has no figures of."""
    check_gate_names(asked.gates, [row.name for row in report.rows], _splits(report), Language.of(report))


def fixed_rows(gates: Iterable[Threshold]) -> list[str]:
    """The rows that gates name with a repair, or a temperature: these a search may not choose otherwise.

    Of all that gates say, this alone changes what is measured.
    """
    return sorted({gate.row for gate in gates if REPAIRED in gate.row})


def evaluate_gates(
    report: Report,
    gates: Sequence[Threshold | str] = (),
    baseline: Report | None = None,
    baseline_tolerance: float = TOLERANCE,
) -> tuple[Gate, ...]:
    """Every threshold held against the report, in their order, the baseline's last.

    A figure that is NaN, infinite or was not measured does not meet its gate. Add the result with
    `dataclasses.replace(report, gates=…)`.
    """
    check_tolerance(baseline_tolerance)
    language = Language.of(report)
    asked = tuple(parse_gate(gate, language) if isinstance(gate, str) else gate for gate in gates)
    check_measured(report, GateSet(gates=asked))
    found = [_held(report, gate) for gate in asked]
    if baseline is not None:
        found += against(baseline, report, baseline_tolerance)
    return tuple(found)


def _held(report: Report, gate: Threshold) -> Gate:
    figure = gate.figure
    row = shipped(report, gate.text) if gate.row == SHIPPED else report.row(gate.row)
    measured = _measure(report, row, gate.split, figure)
    where = f"{row.name}, {gate.split}"
    if figure.what in HEIGHTS and _alone(report, row, gate.split):
        where += ", at λ=½ alone"
    if report.pairs and figure.what in LOST:
        where += f", the worst of {len(report.pairs)} pairs"
    return of_figure(gate.text, figure, measured, gate.limit, where)


def _alone(report: Report, row: Row, split: str) -> bool:
    """Whether λ=½ is all that is known between a row's ends, and other rows have more points."""
    points = {each.name: len(each.curves[split].lambdas) for each in report.rows if split in each.curves}
    return points.get(row.name) == 3 < max(points.values())


def of_figure(text: str, figure: Figure, measured: float, limit: float, where: str) -> Gate:
    """One figure held against its limit; `where` it was measured, in words.

    One beyond 0–1 of a metric that says to lie there meets none: 37 is not above 90 %.
    """
    unit, spare = figure.unit, SHARE if figure.share else OTHER
    bound = f"{'at least' if figure.larger else 'at most'} {number(limit)}{unit}"
    met = measured >= limit - spare if figure.larger else measured <= limit + spare  # False for NaN
    beyond = figure.share and math.isfinite(measured) and abs(measured) > 1 + spare
    met = met and math.isfinite(measured) and not beyond
    shown = number(measured)
    if not met and shown == number(limit):
        shown = f"{measured:.9g}"  # "is 0.05, wanted at most 0.05" would be a riddle
    found = "was not measured or is not a number" if math.isnan(measured) else f"is {shown}{unit}"
    told = f"{where}: {figure.sentence} {found}, wanted {bound}"
    if beyond:
        told += "; it is no share, as its range 0–1 says"
    elif math.isnan(measured) and figure.needs:
        told += f"; {figure.needs}"
    elif not met and math.isfinite(measured):
        told += f": missed by {number(abs(measured - limit))}{unit}"
    return Gate(text, measured, limit, met, told, bound)


def _measure(report: Report, row: Row, split: str, figure: Figure) -> float:
    """The figure a gate asks for, NaN where it was not measured."""
    if figure.what == "value":
        return at_middle(row, figure.key, split)
    if figure.what == "drop":
        ends = [(model.get(split) or {}).get(figure.key, math.nan) for model in report.endpoints]
        sign = next((metric.sign for metric in report.metrics if metric.key == figure.key), -1.0)
        worse = sign * (at_middle(row, figure.key, split) - math.fsum(ends) / len(ends)) if ends else math.nan
        return worse + 0.0  # no −0
    if figure.what in LOST:
        return _worst(report, row, split, figure.what)
    barrier = row.barriers.get(split)
    of = barrier if barrier is None or figure.key == "loss" else barrier.metrics.get(figure.key)
    return getattr(of, figure.what) if of else math.nan


def _worst(report: Report, row: Row, split: str, key: str) -> float:
    """The largest of this figure over all pairs, in which other rows may be shipped; NaN where one lacks."""
    found = [row.lost(key).get(split, math.nan)]
    for pair in report.pairs[1:]:
        name = pair.get("shipped") if row.shipped else row.name
        found.append(float(pair.get(key, {}).get(name, {}).get(split, math.nan)))
    return math.nan if any(map(math.isnan, found)) else max(found)


def _splits(report: Report) -> list[str]:
    return list(dict.fromkeys(split for row in report.rows for split in (*row.curves, *row.barriers)))


@dataclass(frozen=True)
class Limit:
    """A gate before its figure is measured."""

    text: str
    figure: Figure
    limit: float


def parse(
    text: str,
    split: str = "",
    loss: Quantity = CROSS_ENTROPY,
    metrics: Sequence[Quantity] = (ACCURACY,),
    *,
    against: bool = False,
) -> Limit:
    """What a gate asks of a model that is measured on this split, on any where that is not known.

    With a loss of one's own there is no `ece`. Raises UsageError that says what is wrong, and what there is.

    >>> parse("90% <= accuracy").limit
    0.9
    """

    def wrong(told: str, hint: str = "write [SPLIT] FIGURE <= X, such as 'ece <= 0.05'") -> UsageError:
        hint, there = hint[0].upper() + hint[1:], f"figures: {', '.join(figures)}"
        return UsageError(f"--gate {shown(text)}: {told}", problems=[there], hint=hint)

    figures = figures_of(loss, metrics, against=against)
    left, sign, right = compared(text, wrong)
    words = joined(left, metrics).casefold().split()
    splits, named = [word for word in words if word in SPLITS], [word for word in words if word not in SPLITS]
    name = " ".join(named)
    if not name:
        raise wrong("names no figure")
    if name == "ece" and name not in figures:
        raise wrong("with --loss no ece is measured")
    if name in (FLIPS, "forgotten") and not against:
        raise wrong("they are held against other models", "name these with --against")
    if name not in figures:
        raise wrong(f"unknown figure {shown(name)}", near(name, list(figures)))
    if splits and (len(splits) > 1 or split not in ("", *splits)):
        told = f"names {' and '.join(splits)}, and one split is measured"
        raise wrong(f"{told}, {split}" if split else told, "leave it out, or name it by --split")
    figure = figures[name]
    limit = limit_of(text, left, sign, right, figure)
    check_limit(f"--gate {shown(text)}", limit, figure)
    return Limit(text.strip(), figure, limit)


def held(limits: Iterable[Limit], figures: Mapping[str, float], split: str) -> list[Gate]:
    """Every limit held against its figure, in their order."""
    return [
        of_figure(each.text, each.figure, figures.get(each.figure.name, math.nan), each.limit, split)
        for each in limits
    ]
