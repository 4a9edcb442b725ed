"""Thresholds on a finished report: what a CI run asks before it lets a merge through.

`parse_gate` reads `ROW:SPLIT:DEFINITION<=X`; `check_gate_names`, `check_limits` and `check_baseline` find
mistakes before an hour of measuring; `evaluate_gates` holds the thresholds against the report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import RebasinError, UsageError, unknown
from ..reports import Gate, Report, Row
from ..reports._format import MIDPOINT, clean, number

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

BASELINE_TOLERANCE = 0.01  # nats
BASELINE_ACCURACY_TOLERANCE = 0.005

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
        limit = float(value)
    except ValueError:
        raise UsageError(f"--gate {text!r}: {value!r} is not a number", hint=FORM) from None
    _check_limit(f"--gate {text!r}", limit, accuracy=larger)
    return Threshold(text.strip(), row, split, definition, limit)


def check_gate_names(gates: Iterable[Threshold], rows: Iterable[str], splits: Iterable[str]) -> None:
    """Raise UsageError, with the nearest names, for gates on rows or splits that will not be measured."""
    rows, splits, wrong = list(rows), list(splits), []
    for gate in gates:
        for kind, name, known in (("row", gate.row, rows), ("split", gate.split, splits)):
            if name not in known:
                wrong.append(_in_gate(gate.text, unknown(kind, name, known)))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        problems = [f"{error.message}. {error.hint}" for error in wrong]
        raise UsageError("gates ask for what is not measured", problems=problems)


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


def check_baseline(baseline: Report, *, data: str | None = None) -> None:
    """Raise UsageError if `baseline` holds nothing to compare with, or is of other data than `data`."""
    hint = "Write a new baseline with: rebasin barrier … --report FOLDER"
    if data is not None and baseline.data.get("name") != data:
        found = clean(baseline.data.get("name"))
        raise UsageError(f"--baseline was measured on {found}, this report is on {clean(data)}", hint=hint)
    row = _shipped(baseline, "--baseline")
    for definition in ("chord", "accuracy"):
        if not math.isfinite(_measure(row, "test", definition)):
            raise UsageError(f"--baseline has no finite test {definition} for {row.name!r}", hint=hint)


def evaluate_gates(
    report: Report,
    *,
    max_barrier: float | None = None,
    min_accuracy: float | None = None,
    max_accuracy_drop: float | None = None,
    gates: Sequence[Threshold | str] = (),
    baseline: Report | None = None,
    baseline_tolerance: float = BASELINE_TOLERANCE,
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
    asked = [parse_gate(gate) if isinstance(gate, str) else gate for gate in gates]
    check_gate_names(asked, [row.name for row in report.rows], _splits(report))
    judged: list[Gate] = []
    for option, limit, definition in (
        ("--max-barrier", max_barrier, "chord"),
        ("--min-accuracy", min_accuracy, "accuracy"),
    ):
        if limit is not None:
            row = _shipped(report, option).name
            judged.append(_gate(report, Threshold(f"{option} {limit:g}", row, "test", definition, limit)))
    if max_accuracy_drop is not None:
        judged.append(_accuracy_drop(report, max_accuracy_drop))
    judged += [_gate(report, gate) for gate in asked]
    if baseline is not None:
        judged += _against(baseline, report, baseline_tolerance)
    return tuple(judged)


def _gate(report: Report, threshold: Threshold) -> Gate:
    words, unit, larger = DEFINITIONS[threshold.definition]
    measured = _measure(report.row(threshold.row), threshold.split, threshold.definition)
    bound = f"{'at least' if larger else 'at most'} {number(threshold.limit)}{unit}"
    subject = f"{threshold.row}, {threshold.split}: {words}"
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
    return Gate(text, measured, limit, met, f"{subject} {found}, wanted {bound}", bound)


def _accuracy_drop(report: Report, limit: float) -> Gate:
    row = _shipped(report, "--max-accuracy-drop")
    ends = [(model.get("test") or {}).get("accuracy", math.nan) for model in report.endpoints]
    drop = math.fsum(ends) / len(ends) - _measure(row, "test", "accuracy") if ends else math.nan
    subject = f"{row.name}, test: the fall of accuracy at λ=½ below the mean of the endpoints"
    return _judged(f"--max-accuracy-drop {limit:g}", drop, limit, subject, "", f"at most {number(limit)}")


def _against(baseline: Report, report: Report, tolerance: float) -> list[Gate]:
    check_baseline(baseline, data=report.data.get("name"))
    old, new, judged = _shipped(baseline, "--baseline"), _shipped(report, "--baseline"), []
    for definition, slack in (("chord", tolerance), ("accuracy", BASELINE_ACCURACY_TOLERANCE)):
        words, unit, larger = DEFINITIONS[definition]
        before = _measure(old, "test", definition)
        bound = (
            f"{'at least' if larger else 'at most'} the baseline's {number(before)}{unit} "
            f"{'−' if larger else '+'} {number(slack)}{_differences(old, new)}"
        )
        judged.append(
            _judged(
                f"--baseline {definition}",
                _measure(new, "test", definition),
                before - slack if larger else before + slack,
                f"{new.name}, test: {words}",
                unit,
                bound,
                larger,
            )
        )
    return judged


def _differences(old: Row, new: Row) -> str:
    """What makes two measurements less than comparable, for the reader to judge."""
    found = [] if old.name == new.name else [f"the baseline's row is {old.name!r}"]
    if "test" in new.curves and old.curves["test"].samples != new.curves["test"].samples:
        found.append(f"the baseline has {number(old.curves['test'].samples)} samples")
    return f" ({'; '.join(found)})" if found else ""


def _measure(row: Row, split: str, definition: str) -> float:
    """The figure a gate asks for, NaN where it was not measured."""
    if definition in ("loss", "accuracy"):
        curve = row.curves.get(split)
        at_middle = curve.at(MIDPOINT) if curve else None
        return at_middle[definition == "accuracy"] if at_middle else math.nan
    barrier = row.barriers.get(split)
    return getattr(barrier, definition) if barrier else math.nan


def _shipped(report: Report, option: str) -> Row:
    for row in report.rows:
        if row.shipped:
            return row
    raise UsageError(f"{option}: the report has no row that would be shipped")


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
