"""The figures of a barrier report: the path, what was learnt, how right models are where they are sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..runtime.text import clean
from ..types import CROSS_ENTROPY, Quantity, aside
from . import Curve, Reliability, Report, Row
from . import format as f
from .document import Color, Figure, Line, On, Panel
from .pictures import CHORD, PALETTE

KINDS = ("naive", "aligned", "aligned +", "naive +", "random permutation", "logit ensemble",
         "curve (unaligned)", "curve (aligned)")  # fmt: skip
OTHER = len(KINDS)  # the palette's last
MARKERS = "os^Dv+Dsv"  # by kind
TEMPERATURE = " + temperature"  # in the colour of the row that it is about
FEW = 4  # points; with fewer than this no line is drawn, because it would claim what was not measured
LOG_FROM = 20.0  # nats: above, a linear axis would press every other row onto the floor
ACROSS = ((0.25, "¼"), (0.5, "λ = ½"), (0.75, "¾"))

ENSEMBLE = "logit ensemble"
ENDS = (PALETTE[4], ("#9A6700", "#D4A72C"))  # A and B
RARE = 0.005  # of the samples: a bin with fewer is hollow, its height is mostly chance
QUARTERS = ((0, "0"), (0.25, "¼"), (0.5, "½"), (0.75, "¾"), (1, "1"))


def path(report: Report) -> Figure:
    """Loss and metrics along the path: one colour and one marker a row, test solid, other splits dashed."""
    log = "y" if logarithmic(report) else ""
    second = "B" if report.match.get("method") in (None, "none") else "πB"  # permuted, if anything was
    ticks = [(0, "A"), *ACROSS, (1, second)]
    names = [clean(metric.titled) for metric in report.metrics]
    panels = [
        Panel(label, "", "", _lines(report, quantity), scale, ticks=ticks, across=(-0.02, 1.02))
        for quantity, label, scale in (
            ("loss", loss_axis(report.loss) + " (logarithmic)" * bool(log), log),
            *(
                (m.key, name[:1].upper() + name[1:], "")
                for m, name in zip(report.metrics, names, strict=True)
            ),
        )
    ]
    keys = [_drawn(row, [], [], remark=", ".join(f.tags(row)), few=_few(row)) for row in report.rows]
    splits = zip(f.splits(report)[:2], (False, True), strict=False)
    keys += [Line(split, [], [], color=PALETTE[5], marker="", dashed=thin) for split, thin in splits]
    keys.append(Line("chord A–B", [], [], color=CHORD, marker="", dotted=True))
    return Figure("Along the path", panels, describe(report), legend=keys, on=On.DRAWN)


def loss_axis(loss: Quantity) -> str:
    """What an axis of the loss says: its unit, and what it is where that is no cross-entropy."""
    if loss == CROSS_ENTROPY:
        return f"Loss, {loss.unit} per sample"
    if not aside(loss.name):
        return clean(f"Loss, {loss.unit}" if loss.unit else "Loss")
    return clean(f"Loss: {loss.titled if loss.unit else loss.name}")


def logarithmic(report: Report) -> bool:
    """Whether the loss needs a logarithmic axis."""
    values = [y for row in report.rows for curve in row.curves.values() for _, y in points(curve, "loss")]
    return bool(values) and max(values) > LOG_FROM and min(values) > 0


def points(curve: Curve, quantity: str) -> list[tuple[float, float]]:
    """The finite points (λ, value), from left to right; of a few points only those between the ends."""
    values = zip(curve.lambdas, curve.figures.get(quantity, ()), strict=False)
    found = sorted((x, y) for x, y in values if math.isfinite(x) and math.isfinite(y))
    return [(x, y) for x, y in found if 0 < x < 1] or found if len(found) < FEW else found


def color(name: str) -> tuple[Color, str]:
    """Colour and marker of a row; the familiar ones have the same in every report."""
    base, scaled, _ = name.partition(TEMPERATURE)
    tried = (base, base.partition(" +")[0] + " +", base.partition(" +")[0])
    place = next((KINDS.index(kind) for kind in tried if kind in KINDS), OTHER)
    return PALETTE[place], "x" if scaled else MARKERS[place]


def describe(report: Report) -> str:
    """The picture in a sentence, for those who cannot see it."""
    shown = next(iter(f.splits(report)), None)
    if shown is None:
        return "Nothing was measured."
    rows = [row for row in report.rows if shown in row.barriers]
    unit = clean(report.loss.in_unit)
    heights = ", ".join(f"{row.name} {f.fixed(row.barriers[shown].chord)}{unit}" for row in rows)
    names = " and ".join(["Loss", *(clean(metric.name) for metric in report.metrics)])
    return f"{names} along the path. Chord barriers on {shown}: {heights}."


def _lines(report: Report, quantity: str) -> list[Line]:
    """The chord, then every row on two splits, the shipped one last, so that it lies on top."""
    shown = f.splits(report)[:2]
    scores = [model.get(shown[0]) or {} for model in report.endpoints] if shown else []
    ends = [each[quantity] for each in scores if f.is_number(each.get(quantity))]
    known = len(ends) == len(scores) == 2
    found = [Line("", [0, 1], ends, color=CHORD, marker="", dotted=True)] if known else []
    of = {"loss": report.loss} | {metric.key: metric for metric in report.metrics}
    unit = of[quantity].in_unit
    name = "loss" if quantity == "loss" else of[quantity].name
    for row in sorted(report.rows, key=lambda row: row.shipped):
        for thin, split in reversed([*enumerate(shown)]):
            if split in row.curves and (xy := points(row.curves[split], quantity)):
                told = [f"{row.name}, {split}: λ = {x:.4g}, {name} {f.fixed(y)}{unit}" for x, y in xy]
                x, y = zip(*xy, strict=True)
                found.append(_drawn(row, x, y, tells=told, few=_few(row, split), thin=bool(thin)))
    return found


def _drawn(
    row: Row, x: Sequence[float], y: Sequence[float], *, few: bool, thin: bool = False, **more: Any
) -> Line:
    shade, marker = color(row.name)
    look: dict[str, Any] = {"joined": not few, "dashed": thin, "heavy": row.shipped, "hollow": few and thin}
    return Line(row.name, x, y, color=shade, marker="" if thin and not few else marker, **look, **more)


def _few(row: Row, *splits: str) -> bool:
    return all(len(row.curves[split].lambdas) < FEW for split in splits or row.curves)


def learning(report: Report) -> Figure:
    """Held-out loss over the steps of a search, a square on what was kept."""
    title = "The permutations, as they were learnt"
    if not (rows := f.learning(report.match)):
        return Figure(title, [], "")
    kept, steps, losses = f.best(rows), [row["step"] for row in rows], [row["held_out_loss"] for row in rows]
    unit = clean(report.loss.in_unit)
    told = [
        f"step {step:.0f}: held-out loss {f.fixed(loss)}{unit}"
        for step, loss in zip(steps, losses, strict=True)
    ]
    right = kept.get("held_out_accuracy") if report.classifies else None
    how = ", in nats, over steps; kept, for the least loss at the best temperature"
    how = how if report.classifies else " over steps; kept, for the least"
    note = (
        f"Loss at the midpoint on held-out training samples{how}: step "
        f"{kept['step']:.0f}, {f.fixed(kept['held_out_loss'])}"
        + ("." if right is None else f", accuracy {f.fixed(right)}.")
    )
    lines = [
        Line("", steps, losses, color=PALETTE[1], marker="", tells=told),
        Line("", [kept["step"]], [kept["held_out_loss"]], color=PALETTE[1], marker="s", heavy=True),
    ]
    name, across = "Held-out loss at the midpoint, as it was learnt", f"step; kept: {kept['step']:.0f}"
    return Figure(title, [Panel(name, across, "", lines)], note, note=note, on=On.DRAWN)


def reliability(report: Report, split: str) -> Figure:
    """Accuracy over confidence of the endpoints, the shipped row and the ensemble, as far as measured."""
    lines = [Line("", [0, 1], [0, 1], color=CHORD, marker="", dotted=True)]
    for place, (letter, color_, ends) in enumerate(zip("AB", ENDS, report.endpoints, strict=False)):
        scores = ends.get(split) or {}
        if scores.get("reliability"):
            bins = Reliability(**{key: tuple(values) for key, values in scores["reliability"].items()})
            lines += _bins(letter, color_, "sD"[place], scores["ece"], bins)
    for row in report.rows:
        if (row.shipped or row.name == ENSEMBLE) and split in row.middle:
            lines += _bins(row.name, *color(row.name), row.middle[split].ece, row.middle[split].reliability)
    title, name = f"How sure of itself, on {split} data", f"Accuracy over confidence, {split}"
    note = "Dotted: as sure as right; hollow: fewer than 0.5 % of the samples."
    panel = Panel(name, "confidence", "", lines, floor=0, across=(0, 1), ticks=QUARTERS)
    keys = [line for line in lines if line.label]
    alt = "Reliability of " + ", ".join(f"{line.label} ({line.remark})" for line in keys)
    return Figure(title, [panel] if keys else [], alt, legend=keys, note=note, on=On.DRAWN)


def _bins(name: str, color_: Color, marker: str, ece: float, bins: Reliability) -> list[Line]:
    """The bins that hold samples: those with many, joined and named, then the rare ones."""
    total = math.fsum(bins.samples)
    held = [bin_ for bin_ in zip(bins.samples, bins.confidence, bins.accuracy, strict=False) if bin_[0]]
    found = []
    for rare in (False, True):
        some = [(sure, right) for count, sure, right in held if (count < RARE * total) == rare]
        told = [f"{name}: confidence {sure:.3f} on average: accuracy {right:.3f}" for sure, right in some]
        x, y = zip(*some, strict=True) if some else ((), ())
        look: dict[str, Any] = {
            "color": color_,
            "marker": marker,
            "hollow": rare,
            "joined": not rare,
            "tells": told,
        }
        found.append(Line("" if rare else name, x, y, remark=f"ECE {f.fixed(ece)}", **look))
    return found if held else []
