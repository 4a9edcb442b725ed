"""The verdict in plain language: what alignment gained, what repair gained, and what is left to gain.

All figures are test losses at λ = ½. What a step gains is a difference of two rows measured on the same
samples; it counts as something where its 95 % interval does not hold 0, or, where there is none, from 0.005
nats on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..runtime.text import clean
from ..types import ACCURACY
from . import Report
from .format import MISSING, endpoint_figures, endpoints, figures, splits
from .verdicts import GateResult, baselines, results, shouted

SPLIT, MIDPOINT = "test", 0.5
SMALL = 0.005  # nats; of another loss, LITTLE of what is compared with
LITTLE = 0.02  # of its own loss: a control this near is nearly as good, however sure the difference
ENSEMBLE = "logit ensemble"
FITTED, FINE_TUNED = {"refit": "refit", "distill": "distillation"}, "endpoint fine-tuned"


@dataclass(frozen=True)
class _Step:
    """How much less one row loses than another, with its interval; below `small` it may be nothing."""

    gain: float
    interval: tuple[float, ...]
    small: float = SMALL
    unit: str = ""

    @property
    def sign(self) -> int:
        """1 for a gain, −1 for a loss, 0 for what may be chance."""
        if self.interval:
            low, high = self.interval
            return 1 if low > 0 else -1 if high < 0 else 0
        return 0 if abs(self.gain) < self.small else 1 if self.gain > 0 else -1

    def sure(self) -> str:
        if not self.interval:
            return ""
        low, high = map(_number, self.interval)
        return f" (95 % interval {low} to {high})"


def conclude(report: Report) -> str:
    """One sentence or two; "" where naive and shipped rows were not both measured at λ = ½."""
    there = {row.name for row in report.rows if SPLIT in row.curves and row.curves[SPLIT].at(MIDPOINT)}
    shipped = next((row.name for row in report.rows if row.shipped and row.name in there), None)
    if shipped is None or "naive" not in there:
        return ""
    rows = {name for name in there if math.isfinite(_middle(report, name)["loss"])}
    if lacking := [name for name in dict.fromkeys((shipped, "naive")) if name not in rows]:
        return f"No verdict: the loss at λ=½ of {clean(' and '.join(lacking))} is no finite number."
    text = _gained(report, rows, shipped)
    if ENSEMBLE not in rows:
        return f"{text}."
    step = _step(report, ENSEMBLE, shipped)
    if step.sign > 0:
        than = f"{_number(step.gain)}{step.unit} less"
    else:
        than = "no less" if step.sign == 0 else f"{_number(-step.gain)}{step.unit} more"
    return f"{text}. The ensemble of both, at twice the cost, loses {than}."


def _gained(report: Report, rows: set[str], shipped: str) -> str:
    """What the shipped row gains over naive, and what of that is alignment's and repair's."""
    if shipped == "naive":
        text = _unaligned(report)
        return f"{text[0].upper()}{text[1:]}, and nothing is repaired"
    best, _, word = shipped.partition(" + ")
    if word in FITTED:
        return _of_refit(report, rows, shipped, word)
    total = _step(report, shipped, "naive")
    if total.sign == 0:
        return _nothing(total, "naive")
    if total.sign < 0:
        more = f"{_number(-total.gain)}{total.unit} more at λ=½{_back(total)}"
        return f"Worse than naive: {clean(shipped)} loses {more}"
    if best == "naive":
        gained = f"Repair gains {_number(total.gain)}{total.unit} over naive{total.sure()}"
        return f"{gained}; {_unaligned(report)}"
    word = word or next((row.name.split(" + ")[1] for row in report.rows if _is_candidate(row.name)), "")
    control, repaired = f"naive + {word}", f"aligned + {word}"
    if word and control in rows:
        alone = _step(report, shipped, control)
        lost = _middle(report, control)["loss"]
        if alone.sign <= 0 or alone.gain < LITTLE * lost:
            than = {-1: "better", 0: "as good", 1: "nearly as good"}[alone.sign]
            return (
                f"Alignment is not what helps: {clean(word)} alone ({clean(control)}) is {than}, "
                f"{_signed(alone.gain)}{alone.unit}{alone.sure()}; {_number(total.gain)}{total.unit} are "
                "gained over naive"
            )
    alignment = _step(report, "aligned", "naive") if "aligned" in rows else total
    if shipped == "aligned":
        text = (
            f"Alignment explains all of the {_number(total.gain)}{total.unit} gained over naive{total.sure()}"
        )
    elif alignment.sign > 0:
        text = (
            f"Alignment explains {_number(alignment.gain)} of the {_number(total.gain)}{total.unit} gained "
            f"over naive{alignment.sure()}"
        )
    else:
        text = (
            f"{_number(total.gain)}{total.unit} are gained over naive{total.sure()}, but only by alignment "
            f"and {clean(word)} together: alignment alone {_verb(alignment)}"
        )
    if word and repaired in rows and "aligned" in rows:
        text += f"; {_of_repair(report, word, repaired)}"
    if word and control in rows:
        text += f"; without alignment, {clean(word)} gains {_number(_step(report, control, 'naive').gain)}"
    return text


def _nothing(total: _Step, over: str) -> str:
    return (
        f"Nothing is gained over {over}: the loss at λ=½ falls by {_number(total.gain)}{total.unit}, "
        f"which may be chance{total.sure()}"
    )


def _of_refit(report: Report, rows: set[str], shipped: str, how: str) -> str:
    """What of the gain is refit or distillation, what alignment; and what one of the endpoints does alone.

    Where statistics of norms are averaged, what was not repaired at all is no measure: then resets are.
    """
    naive, aligned = (
        f"{base} + reset" if f"{base} + reset" in rows else base for base in ("naive", "aligned")
    )
    total, control = _step(report, shipped, naive), f"naive + {how}"
    word = FITTED[how]
    if total.sign < 0:
        worse = f"{_number(-total.gain)}{total.unit} more at λ=½{_back(total)}"
        text = f"Worse than {naive}: {shipped} loses {worse}"
    elif total.sign == 0:
        text = _nothing(total, naive)
    elif shipped == control:
        gained = f"The {word} gains {_number(total.gain)}{total.unit} over {naive}{total.sure()}"
        text = f"{gained}; {_unaligned(report)}"
    else:
        text = f"{_number(total.gain)}{total.unit} are gained over {naive}{total.sure()}"
    if total.sign > 0 and control in rows and shipped != control:
        more = _step(report, shipped, control)
        lost = _middle(report, control)["loss"]
        alone = _number(_step(report, control, naive).gain)
        if more.sign <= 0 or more.gain < LITTLE * lost:
            than = {-1: "better", 0: "as good", 1: "nearly as good"}[more.sign]
            text += (
                f", but alignment is not what helps: the {word} alone ({control}) is {than}, "
                f"{_signed(more.gain)}{more.unit}{more.sure()}"
            )
        else:
            text += (
                f": the {word} alone ({control}) explains {alone}, alignment {_number(more.gain)} on top of "
                f"it{more.sure()}"
            )
    if total.sign > 0 and aligned in rows and shipped != control:
        text += f"; without a {word}, alignment gains {_number(_step(report, aligned, naive).gain)}"
    return text + _better_endpoint(report, shipped) + _fine_tuned(report, rows, shipped)


def _unaligned(report: Report) -> str:
    """What is to be said where this run aligned nothing: whether its models were aligned before.

    By what their files record: the digests of what they were made of, the first of them the reference.
    """
    pair = report.inputs[:2]
    for given, other in zip(pair, reversed(pair), strict=True):
        recorded, others = _recorded(given), _recorded(other)
        name, how = clean(given.get("file", "?")), f"by {clean(recorded.get('rebasin.method', '?'))}"
        if recorded.get("rebasin.command") == "apply":
            return f"already permuted: {name}, by a permutation that was given, as the file records"
        if recorded.get("rebasin.command") != "align" or not (made_of := _digests(recorded)):
            continue
        if made_of[0] == other.get("sha256"):
            return f"already aligned: {name} to {clean(other.get('file', '?'))}, {how}, as the file records"
        if others.get("rebasin.command") == "align" and _digests(others)[:1] == made_of[:1]:
            return f"already aligned: both to one other model, {how}, as the files record"
        return f"nothing was aligned here; {name} was before, {how}, to another model than this one"
    return "nothing was aligned"


def _recorded(given: Mapping[str, Any]) -> dict[str, str]:
    """What a report tells of the record of one of its models, as far as it is text."""
    found = given.get("recorded")
    held = found.items() if isinstance(found, Mapping) else ()
    return {key: text for key, text in held if isinstance(text, str)}


def _digests(recorded: Mapping[str, str]) -> list[str]:
    """Digests of what a file was made of."""
    try:
        found = json.loads(recorded.get("rebasin.inputs", "[]"))
    except (ValueError, RecursionError):
        return []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _better_endpoint(report: Report, shipped: str) -> str:
    """How the merged model compares to the better one of those that it was made of, on test data."""
    known = [end for end in report.endpoints if SPLIT in end and math.isfinite(end[SPLIT]["loss"])]
    if not known:
        return ""
    best = min(known, key=lambda end: end[SPLIT]["loss"])
    merged = _middle(report, shipped)
    apart = merged["loss"] - best[SPLIT]["loss"]
    less = f"{_number(abs(apart))}{_unit(report)} {'less' if apart > 0 else 'more'}"
    told = (
        f". The better endpoint, {clean(best['name'])}, loses {less if float(_number(apart)) else 'as much'}"
    )
    metric = next(iter(report.metrics), None)
    if metric is None or metric.key not in best[SPLIT] or metric.key not in merged:
        return told
    one, other = (_number(figures[metric.key]) for figures in (best[SPLIT], merged))
    if metric == ACCURACY:
        return f"{told} ({one} accurate, the merged model {other})"
    return f"{told} ({clean(metric.name)} {one}, of the merged model {other})"


def _fine_tuned(report: Report, rows: set[str], shipped: str) -> str:
    if FINE_TUNED not in rows:
        return ""
    step = _step(report, FINE_TUNED, shipped)
    how = (
        "neither more nor less by more than chance"
        if step.sign == 0
        else f"{_number(abs(step.gain))}{step.unit} {'less' if step.sign > 0 else 'more'}"
    )
    return f", and fine-tuned for about as long, on the same samples but with their labels, one loses {how}"


def _is_candidate(name: str) -> bool:
    parts = name.split(" + ")
    return parts[0] == "aligned" and len(parts) == 2 and parts[1] != "temperature"


def _of_repair(report: Report, word: str, repaired: str) -> str:
    step = _step(report, repaired, "aligned")
    if step.sign > 0:
        shipped = next((row.name for row in report.rows if row.shipped), "")
        does = "explains" if shipped == repaired else "would gain"
        return f"{clean(word)} {does} {_number(step.gain)} on top of it{step.sure()}"
    if step.sign < 0:
        return f"{clean(word)} loses {_number(-step.gain)}{step.unit}{_back(step)}"
    return f"{clean(word)} adds nothing: {_signed(-step.gain)}{step.unit}{_back(step)}"


def _middle(report: Report, name: str) -> dict[str, float]:
    """Loss and metrics of a row at λ = ½; the loss is NaN where they were not measured."""
    return report.row(name).curves[SPLIT].at(MIDPOINT) or {"loss": math.nan}


def _unit(report: Report) -> str:
    return clean(report.loss.in_unit)


def _step(report: Report, row: str, other: str) -> _Step:
    """What `row` gains over `other`."""
    found = report.difference(row, other)
    one, two = (_middle(report, name)["loss"] for name in (row, other))
    of: dict[str, Any] = {"small": SMALL if report.classifies else LITTLE * abs(two), "unit": _unit(report)}
    if found is not None:
        interval = tuple(-value for value in reversed(found.intervals.get("loss", ())))
        return _Step(-found.figures["loss"], interval, **of)
    return _Step(two - one, (), **of)


def _verb(step: _Step) -> str:
    return "gains nothing" if step.sign == 0 else f"loses {_number(-step.gain)}{step.unit}"


def _back(step: _Step) -> str:
    """The interval of the loss's change, which is the gain's turned round."""
    return replace(step, gain=-step.gain, interval=tuple(-value for value in reversed(step.interval))).sure()


def _number(value: float) -> str:
    return f"{value:z.3f}"


def _signed(value: float) -> str:
    return f"{value:+z.3f}"


def brief(report: Report) -> list[str]:
    """Figures of the split that counts, the verdict, then a line a gate, met or not."""
    split, lines = next(iter(splits(report)), ""), []
    for letter, file, ends in endpoints(report):
        lines.append(f"{letter} {file}: {clean(split)} {_all(report, endpoint_figures(report, ends, split))}")
    for row in report.rows:
        if row.shipped:
            count = 1 + len(report.metrics)
            at, (midpoint, chord) = (texts := figures(report, row, split))[:count], texts[count : count + 2]
            unit = _unit(report)
            height = f"barrier {chord}{unit} (chord), {midpoint} (midpoint)" if chord != MISSING else ""
            seen = ", ".join(filter(None, [_all(report, at), height]))
            lines.append(f"▸ {clean(row.name)}: {clean(split)} {seen} at λ=½")
    return [*lines, *filter(None, [conclude(report)]), *told(results(report))]


def told(gates: list[GateResult]) -> list[str]:
    """A line a gate, and which baseline they were held against."""
    return [*(f"{shouted(gate)}  {clean(gate.told)}" for gate in gates), *baselines(gates)]


def _all(report: Report, figures: tuple[str, ...]) -> str:
    """Loss and metrics with their names."""
    names = ("loss", *(clean(metric.name) for metric in report.metrics))
    return ", ".join(f"{name} {figure}" for name, figure in zip(names, figures, strict=True))
