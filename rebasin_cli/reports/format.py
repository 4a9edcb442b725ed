"""Words and numbers that several report formats share: one sentence, one rounding, for all of them.

Nothing here measures or decides anything; it reads a `Report` and returns text without any markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..runtime.text import clean, many
from ..types import aside
from . import Report, Row

FLIPS = "negative flips"
MISSING = "—"
MIDPOINT = 0.5
SHIPPED = "the row that `merge` with the same options would write"
BARRIER = (
    "Barrier: how far the loss between A and B rises above the mean of their losses (midpoint) or above the "
    "straight line between them (chord)."
)
DEFINITIONS = (
    ("midpoint", "max over λ of L(λ) − ½(L(A) + L(B)); its floor is ½|L(A) − L(B)| (Git Re-Basin, def. 2.2)"),
    ("chord", "max over λ of L(λ) − (1−λ)·L(A) − λ·L(B); its floor is 0: nowhere above the straight line"),
    ("{metric} barriers", "the same two, for how far {metric} {falls} the mean or the chord"),
    ("naive", "(1−λ)·A + λ·B, the models as they were given"),
    ("aligned", "(1−λ)·A + λ·πB, the second model's hidden units put into the order of the first"),
    ("+ reset", "norm statistics of each point on the path measured anew on training data"),
    (
        "+ repair",
        "every channel given the mean and standard deviation between its endpoints', measured on training "
        "data and folded into the weights (REPAIR); + rescale: standard deviations only, + reshift: means",
    ),
    (
        "+ refit",
        "every layer fitted to the weighted mean of what A and B compute there, by least squares on training "
        "samples without their labels; naive + refit is what that does by itself",
    ),
    (
        "+ distill",
        "+ refit, and then all weights trained towards the weighted mean of A's and B's outputs, on training "
        "samples without their labels; naive + distill is what that does by itself",
    ),
    (
        "endpoint fine-tuned",
        "the endpoint of the lower training loss, trained on the samples of the refit or distillation with "
        "their labels, which these do not look at, for as many multiplications",
    ),
    (
        "+ temperature",
        "the same logits divided by one number T, fitted on training samples; no file is written with it",
    ),
    ("random permutation", "B's units in an order drawn at random: what any order would do"),
    (
        "logit ensemble",
        "the mean of both models' logits: an upper reference at twice the cost, not one network's",
    ),
    ("control", "to be compared with, never shipped: naive + reset is what the reset does by itself"),
    (
        FLIPS,
        "samples that both models have right and the row at λ=½ has not, as a share of all (Yan et al. 2021, "
        "Positive-Congruent Training)",
    ),
    (
        "95 %",
        "of 1,000 draws of test samples with replacement, the same for all rows (bootstrap); it says nothing "
        "of other seeds: for those measure several pairs (`--pair`)",
    ),
    (
        "ECE",
        "expected calibration error, 0–1: how far confidence and accuracy lie apart, over bins of "
        "equal width (Guo et al. 2017)",
    ),
)
HEIGHT, CALIBRATION = "chord barrier at λ=½", "ECE"
OF_CLASSES = ("+ temperature", "logit ensemble", CALIBRATION)  # what there is of cross-entropy alone


def legend(report: Report) -> str:
    """In what figures are given, in two sentences."""
    unit = f"in {report.loss.unit} per sample" if report.loss.unit else "per sample"
    loss = f"Loss: {clean(report.loss.name)}, {unit}" if aside(report.loss.name) else f"Loss {unit}"
    metrics = [clean(f"{metric.name} {metric.spread}".strip()) for metric in report.metrics]
    return f"{', '.join([loss, *metrics])}. {BARRIER}"


def audited(report: Report) -> bool:
    """Whether it is known which samples a row has right."""
    return any(middle.flips for row in report.rows for middle in row.middle.values())


def definitions(report: Report) -> list[tuple[str, str]]:
    """What the words of a report mean, as far as they may stand in it."""
    found = []
    for word, meaning in DEFINITIONS:
        if word in OF_CLASSES and not report.classifies or (word == FLIPS and not audited(report)):
            continue
        if "{metric}" not in word:
            found.append((word, meaning))
            continue
        for metric in report.metrics:
            falls = "falls below" if metric.larger_is_better else "rises above"
            texts = (text.format(metric=clean(metric.name), falls=falls) for text in (word, meaning))
            found.append((next(texts), next(texts)))
    return found


def fixed(value: Any) -> str:
    """Loss, accuracy or barrier for a column of figures: four decimals, so that rows compare at a glance."""
    if not is_number(value):
        return _not_a_number(value)
    return f"{value:z.4f}" if abs(value) < 10_000 else f"{value:.3e}"


def number(value: Any) -> str:
    """Any other number at four significant places: 0.001234, 12.35, 123,457, 1.234e-12."""
    if not is_number(value):
        return _not_a_number(value)
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1_000 <= abs(value) < 1e9 else f"{value:.4g}"


def duration(seconds: Any) -> str:
    if not is_number(seconds):
        return _not_a_number(seconds)
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, of any size; truth is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _not_a_number(value: Any) -> str:
    return MISSING if value is None else clean(value)  # float nan and inf read "nan", "inf", "-inf"


def splits(report: Report) -> list[str]:
    """The splits that were measured, test first because it is the one that counts."""
    found = dict.fromkeys(split for row in report.rows for split in (*row.curves, *row.barriers))
    return sorted(found, key=lambda split: (split != "test", split != "train", split))


def samples(report: Report, split: str) -> str:
    counts = [row.curves[split].samples for row in report.rows if split in row.curves]
    return many(max(counts), "sample") if counts else ""


def middle(report: Report, row: Row, split: str) -> tuple[str, ...]:
    """Loss and metrics at λ=½ as text, dashes where that point was not measured."""
    curve = row.curves.get(split)
    found = (curve.at(MIDPOINT) if curve else None) or {}
    return tuple(fixed(found.get(key)) for key in report.keys)


def figures(report: Report, row: Row, split: str) -> tuple[str, ...]:
    """The texts under `columns` followed by those under `metric_columns`."""
    barrier = row.barriers.get(split)
    if barrier is None:
        return (*middle(report, row, split), *[MISSING] * (2 + 2 * len(report.metrics)))
    heights = [barrier.metrics.get(metric.key) for metric in report.metrics]
    values = [value for both in heights for value in ((both.midpoint, both.chord) if both else (None, None))]
    return (*middle(report, row, split), *map(fixed, (barrier.midpoint, barrier.chord, *values)))


def remark(row: Row) -> str:
    """What one has to know of a row's figures, in a few words; "" for most rows."""
    why = f": {clean(row.details['why'])}" if "why" in row.details else ""
    found = [f"T = {number(row.details['temperature'])}{why}"] if "temperature" in row.details else []
    if row.details.get("cost", 1) != 1:
        found.append(
            {2: "twice the cost"}.get(row.details["cost"], f"{clean(row.details['cost'])}× the cost")
        )
    return ", ".join(found)


def tags(row: Row) -> list[str]:
    """The words beside a row's name."""
    found = [word for word, said in (("shipped", row.shipped), ("control", row.control)) if said]
    return [*found, *filter(None, [remark(row)])]


def within(interval: Sequence[float] | None) -> str:
    """A 95 % interval as text."""
    if not interval:
        return MISSING
    return f"{fixed(interval[0])}{'–' if interval[0] >= 0 else ' to '}{fixed(interval[1])}"


def short(value: float) -> str:
    """A correlation, or a share of a deviation; a dash where there was nothing to correlate."""
    return f"{value:z.3f}" if math.isfinite(value) else MISSING


def endpoints(report: Report) -> list[tuple[str, str, dict[str, Any]]]:
    """(letter, file, figures by split) of each model."""
    files = [clean(model.get("file", "")) for model in report.inputs]
    return [
        (chr(ord("A") + place), files[place] if place < len(files) else clean(ends.get("name", "")), ends)
        for place, ends in enumerate(report.endpoints)
    ]


def endpoint_figures(report: Report, ends: Mapping[str, Any], split: str) -> tuple[str, ...]:
    """Loss and metrics of a model as text."""
    scores = ends.get(split) or {}
    return tuple(fixed(scores.get(key)) for key in report.keys)


def title(report: Report, room: int = 10_000) -> str:
    """What was measured; of each file's name the last `room` characters."""
    files = [tail(clean(model.get("file", "?")), room) for model in report.inputs]
    return f"Barrier between {' and '.join(files)}" if files else "Barrier"


def tail(text: str, room: int) -> str:
    """The end of a path, which is what tells two files apart."""
    return text if len(text) <= room else "…" + text[1 - max(room, 2) :]


def headline(report: Report) -> str:
    """The figure that counts, and the one it is to be compared with, in a sentence."""
    split = next(iter(splits(report)), "test")
    shipped = next((row for row in report.rows if row.shipped and split in row.barriers), None)
    naive = next((row for row in report.rows if row.name == "naive" and split in row.barriers), None)
    if shipped is None:
        return "No row of this report is one that would be shipped."
    barrier = fixed(shipped.barriers[split].chord)
    compared = f"; naive {fixed(naive.barriers[split].chord)}" if naive and naive is not shipped else ""
    unit = clean(report.loss.in_unit)
    return f"{clean(shipped.name)}: {clean(split)} barrier {barrier}{unit} (chord){compared}"


def learning(match: Mapping[str, Any]) -> list[dict[str, float]]:
    """What a search that learns saw of held-out samples, step by step; [] for others."""
    rows = match.get("history") or []
    return [row for row in rows if is_number(row.get("step")) and is_number(row.get("held_out_loss"))]


def best(rows: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """The row of `learning` whose permutations were kept: of the least loss at the best temperature.

    Reports of before this was told have the loss as it is, which decided.
    """
    return min(rows, key=lambda row: row.get("held_out_calibrated", row["held_out_loss"]))
