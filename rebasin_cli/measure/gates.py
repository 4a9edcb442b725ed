"""Thresholds on a finished report: what a CI run asks before it lets a merge through.

`parse_gate` reads `ROW:SPLIT:DEFINITION<=X`; `check_gate_names` and `check_limits` find mistakes before an
hour of measuring, as `check_baseline` does for `baseline`; `evaluate_gates` holds the thresholds against the
report, and `judged` puts what it found into it: right after measuring, or years later.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import RebasinError, UsageError, unknown
from ..registry import numbers
from ..reports import Gate, Report, Row
from ..reports._format import number
from .baseline import TOLERANCE, Baseline, against, at_middle, shipped

# What a gate may ask for: (words for a sentence, unit, whether larger is better).
DEFINITIONS = {
    "midpoint": ("loss barrier (midpoint)", " nats", False),
    "chord": ("loss barrier (chord)", " nats", False),
    "accuracy_midpoint": ("accuracy barrier (midpoint)", "", False),
    "accuracy_chord": ("accuracy barrier (chord)", "", False),
    "loss": ("loss at λ=½", " nats", False),
    "accuracy": ("accuracy at λ=½", "", True),
}
FORM = "expected ROW:SPLIT:DEFINITION<=X, for example 'aligned:test:chord<=0.05'"
_GATE = re.compile(r"\s*([^:<>=≤≥]+):([^:<>=≤≥]+):([^:<>=≤≥]+)(<=|>=|==|[≤≥<>=])([^:<>=≤≥]+)")

REPAIRED = " + "  # in the names of rows whose repair, or temperature, a search may decide

# What a figure may miss its limit by, by its unit. Accuracies are multiples of 1/samples: a drop of exactly
# the limit must not miss it by the last bit. Losses are of float32: between equal models they rise by 1e-8.
ROUNDING = {"": 1e-12, " nats": 5e-8}


@dataclass(frozen=True)
class Threshold:
    """A gate before it is measured: which figure, and how small (accuracy: how large) it has to be."""

    text: str
    row: str
    split: str
    definition: str
    limit: float


@dataclass(frozen=True)
class Asked:
    """All gates that a command is asked for. Raises UsageError for limits that cannot be meant."""

    max_barrier: float | None = None
    min_accuracy: float | None = None
    max_accuracy_drop: float | None = None
    gates: tuple[Threshold, ...] = ()
    baseline: Baseline | None = None
    baseline_tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        check_limits(**self.limits)

    @property
    def limits(self) -> dict[str, float | None]:
        """The limits by their options."""
        return {
            "max_barrier": self.max_barrier,
            "min_accuracy": self.min_accuracy,
            "max_accuracy_drop": self.max_accuracy_drop,
            "baseline_tolerance": self.baseline_tolerance,
        }

    @property
    def any(self) -> bool:
        """Whether anything is asked for at all."""
        limits = (self.max_barrier, self.min_accuracy, self.max_accuracy_drop)
        return any(limit is not None for limit in limits) or bool(self.gates) or self.baseline is not None


def judged(report: Report, asked: Asked) -> Report:
    """The report with these gates in the place of those that it had, all held against its figures."""
    baseline = asked.baseline
    found = evaluate_gates(report, gates=asked.gates, baseline=baseline and baseline.report, **asked.limits)
    return replace(report, gates=found, baseline=baseline.account if baseline else {})


def contradicted(report: Report) -> Iterator[str]:
    """A sentence for every gate of a report that its own figures say something else of.

    Gates against a baseline are not looked at: what they were held against is not in the report.
    """
    for gate in report.gates:
        option, _, _ = gate.text.partition(" ")
        limit = {option.removeprefix("--").replace("-", "_"): gate.limit}
        if option == "--baseline":
            continue
        try:
            known = (
                limit if option in _LIMITS else {"gates": [replace(parse_gate(gate.text), limit=gate.limit)]}
            )
            (again,) = evaluate_gates(report, **known)
        except RebasinError as error:
            yield f"{gate.text}: {error.message}"
            continue
        asked = gate.text == f"{option} {gate.limit:g}" if option in _LIMITS else _asks(gate)
        if not asked:
            yield f"{gate.text}: it was held against {gate.limit:g}"
        elif again.met != gate.met:
            yield f"{gate.text}: it says {'met' if gate.met else 'not met'}, and {again.detail}"


def _asks(gate: Gate) -> bool:
    return parse_gate(gate.text).limit == gate.limit


_LIMITS = ("--max-barrier", "--min-accuracy", "--max-accuracy-drop")


def parse_gate(text: str) -> Threshold:
    """Read `ROW:SPLIT:DEFINITION<=X`, or `>=X` for accuracy.

    >>> parse_gate("aligned + reset:test:chord<=0.05").limit
    0.05
    """
    found = _GATE.fullmatch(text)
    if not found:
        raise UsageError(f"--gate {text!r} cannot be read", hint=FORM)
    row, split, definition, comparison, value = (part.strip() for part in found.groups())
    row = " + ".join(" ".join(part.split()) for part in row.split("+"))  # "aligned+reset" is meant well
    if definition not in DEFINITIONS:
        raise _in_gate(text, unknown("definition", definition, DEFINITIONS))
    larger = DEFINITIONS[definition][2]
    wanted, better = (">=", "larger") if larger else ("<=", "smaller")
    if comparison.replace("≤", "<=").replace("≥", ">=") != wanted:
        message = f"--gate {text!r}: {definition} is better when {better}, found {comparison!r}"
        raise UsageError(message, hint=f"Write '{row}:{split}:{definition}{wanted}{value}'")
    try:
        limit = numbers.real(value)
    except ValueError:
        raise UsageError(f"--gate {text!r}: {value!r} is not a number", hint=FORM) from None
    _check_limit(f"--gate {text!r}", limit, accuracy=larger)
    return Threshold(text.strip(), row, split, definition, limit)


SHIPPED = "shipped"  # the row that `merge` would write, whatever a search makes it


def check_gate_names(gates: Iterable[Threshold], rows: Iterable[str], splits: Iterable[str]) -> None:
    """Raise UsageError, with the nearest names, for gates on rows or splits that will not be measured."""
    rows, splits, wrong = [*rows, SHIPPED], list(splits), []
    for gate in gates:
        for kind, name, known in (("row", gate.row, rows), ("split", gate.split, splits)):
            if name not in known:
                wrong.append(_in_gate(gate.text, unknown(kind, name, known)))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        problems = [f"{error.message}. {error.hint}" for error in wrong]
        raise UsageError("gates ask for what is not measured", problems=problems)


def check_measured(report: Report, asked: Asked) -> None:
    """Raise UsageError for gates on rows or splits that the report has no figures of."""
    check_gate_names(asked.gates, [row.name for row in report.rows], _splits(report))


def fixed_rows(gates: Iterable[Threshold]) -> list[str]:
    """The rows that gates name with a repair, or a temperature: these a search may not choose otherwise.

    Of all that gates say, this alone changes what is measured.
    """
    return sorted({gate.row for gate in gates if REPAIRED in gate.row})


def check_limits(
    *,
    max_barrier: float | None = None,
    min_accuracy: float | None = None,
    max_accuracy_drop: float | None = None,
    baseline_tolerance: float | None = None,
) -> None:
    """Raise UsageError for limits that cannot be meant: NaN, accuracies of 95, tolerances below 0."""
    for option, limit, accuracy in (
        ("--max-barrier", max_barrier, False),
        ("--min-accuracy", min_accuracy, True),
        ("--max-accuracy-drop", max_accuracy_drop, True),
        ("--baseline-tolerance", baseline_tolerance, False),
    ):
        if limit is not None:
            _check_limit(option, limit, accuracy=accuracy)
    if baseline_tolerance is not None and baseline_tolerance < 0:
        raise UsageError(f"--baseline-tolerance: the limit is {baseline_tolerance:g}, expected 0 or more")


def evaluate_gates(
    report: Report,
    *,
    max_barrier: float | None = None,
    min_accuracy: float | None = None,
    max_accuracy_drop: float | None = None,
    gates: Sequence[Threshold | str] = (),
    baseline: Report | None = None,
    baseline_tolerance: float = TOLERANCE,
) -> tuple[Gate, ...]:
    """Every threshold held against the report, in the order of the arguments.

    The first three and the baseline look at the shipped row on test data. A figure that is NaN, infinite
    or was not measured does not meet its gate. Add the result with `dataclasses.replace(report, gates=…)`.
    """
    check_limits(
        max_barrier=max_barrier,
        min_accuracy=min_accuracy,
        max_accuracy_drop=max_accuracy_drop,
        baseline_tolerance=baseline_tolerance,
    )
    asked = tuple(parse_gate(gate) if isinstance(gate, str) else gate for gate in gates)
    check_measured(report, Asked(gates=asked))
    judged: list[Gate] = []
    for option, limit, definition in (
        ("--max-barrier", max_barrier, "chord"),
        ("--min-accuracy", min_accuracy, "accuracy"),
    ):
        if limit is not None:
            row = shipped(report, option).name
            judged.append(_gate(report, Threshold(f"{option} {limit:g}", row, "test", definition, limit)))
    if max_accuracy_drop is not None:
        judged.append(_accuracy_drop(report, max_accuracy_drop))
    judged += [_gate(report, gate) for gate in asked]
    if baseline is not None:
        judged += against(baseline, report, baseline_tolerance)
    return tuple(judged)


def _gate(report: Report, threshold: Threshold) -> Gate:
    words, unit, larger = DEFINITIONS[threshold.definition]
    row = shipped(report, threshold.text) if threshold.row == SHIPPED else report.row(threshold.row)
    measured = _measure(row, threshold.split, threshold.definition)
    bound = f"{'at least' if larger else 'at most'} {number(threshold.limit)}{unit}"
    subject = f"{row.name}, {threshold.split}: {words}"
    return _judged(threshold.text, measured, threshold.limit, subject, unit, bound, larger)


def _judged(
    text: str, measured: float, limit: float, subject: str, unit: str, bound: str, larger: bool = False
) -> Gate:
    spare = ROUNDING[unit]
    met = measured >= limit - spare if larger else measured <= limit + spare  # False for NaN
    met = met and math.isfinite(measured)
    shown = number(measured)
    if not met and shown == number(limit):
        shown = f"{measured:.9g}"  # "is 0.05, wanted at most 0.05" would be a riddle
    found = "was not measured or is not a number" if math.isnan(measured) else f"is {shown}{unit}"
    told = f"{subject} {found}, wanted {bound}"
    if not met and math.isfinite(measured):
        told += f": missed by {number(abs(measured - limit))}{unit}"
    return Gate(text, measured, limit, met, told, bound)


def _accuracy_drop(report: Report, limit: float) -> Gate:
    row = shipped(report, "--max-accuracy-drop")
    ends = [(model.get("test") or {}).get("accuracy", math.nan) for model in report.endpoints]
    drop = math.fsum(ends) / len(ends) - _measure(row, "test", "accuracy") if ends else math.nan
    subject = f"{row.name}, test: the fall of accuracy at λ=½ below the mean of the endpoints"
    return _judged(f"--max-accuracy-drop {limit:g}", drop, limit, subject, "", f"at most {number(limit)}")


def _measure(row: Row, split: str, definition: str) -> float:
    """The figure a gate asks for, NaN where it was not measured."""
    if definition in ("loss", "accuracy"):
        return at_middle(row, definition, split)
    barrier = row.barriers.get(split)
    return getattr(barrier, definition) if barrier else math.nan


def _splits(report: Report) -> list[str]:
    return list(dict.fromkeys(split for row in report.rows for split in (*row.curves, *row.barriers)))


def _in_gate(text: str, error: RebasinError) -> UsageError:
    return UsageError(f"--gate {text!r}: {error.message}", hint=error.hint)


def _check_limit(where: str, limit: float, *, accuracy: bool) -> None:
    if not math.isfinite(limit):
        raise UsageError(f"{where}: the limit is {limit}, expected a number")
    if accuracy and not -1 <= limit <= 1:
        hint = f"Accuracy is 0–1: did you mean {limit / 100:g}?" if 1 < limit <= 100 else "Accuracy is 0–1."
        raise UsageError(f"{where}: the limit is {limit:g}", hint=hint)
