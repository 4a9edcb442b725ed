"""A comparison as a document, and as files: JSON for programs, Markdown, a page and a picture for people."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence

from ..reports.document import (
    Code,
    Column,
    Command,
    Document,
    Facts,
    Figure,
    Inline,
    Kind,
    Line,
    Notes,
    On,
    Panel,
    Row,
    Table,
    Tone,
)
from ..reports.facts import facts, took
from ..reports.format import MISSING, fixed, number, tail
from ..reports.path import loss_axis
from ..runtime.text import clean, many
from .compared import Comparison, Curvature
from .geometry import Geometry
from .simplex import Point, Points, spread

REGULAR = (
    "angles: their standard deviation around 60°, and their range. All 60° is a regular simplex, which "
    "independent points of so many dimensions form as well: that models form one, too, says nothing about "
    "them. What does is where they differ from the rows of null: nearer to each other, or less regular"
)
CYCLE = (
    "weight matching of each pair by itself: the share of units that do not come back on the way through "
    "three models. It is 0 by construction for every method above, which gives each model one order"
)
CURVED = "tr(H ⊙ θθᵀ) ± the standard error over the probes; larger is sharper (STE-MM, equation 6)"
FAR = 3.0  # times what all else needs: from there on what was not aligned leaves the loss axis
ROOM = 1.25  # times what all else needs, as high as the axis is then


def document(found: Comparison) -> Document:
    """Every table, and the mean of n models drawn for every method."""
    inputs: list[tuple[str, Inline]] = [
        (str(k), (Code(model.get("file", "?")), ", sha256 ", Code(model.get("sha256", ""))))
        for k, model in enumerate(found.inputs, start=1)
    ]
    return Document(
        title(found),
        [headline(found)],
        [
            figure(found),
            *tables(found),
            Facts(
                "How it was measured", [*facts(found, found.match, found.proof), ("took", took(found.times))]
            ),
            Notes("Notes", found.notes, word="note"),
            Facts("Inputs", inputs, on=On.PAGE),
            Command("Measure it again", found.command),
        ],
    )


def figure(found: Comparison) -> Figure:
    """Test loss and metrics of the mean of n models; dashed: the models' own mean."""
    loss, *metrics = found.quantities
    axis = loss_axis(loss)
    labels = {"loss": f"Test {axis[0].lower()}{axis[1:]}"} | {m.key: f"Test {m.titled}" for m in metrics}
    panels = []
    for what, label in labels.items():
        least = ceiling(found) if what == "loss" else math.inf
        top = least if math.isfinite(least) else None
        lines = _lines(found, what, least)
        ticks = [(n, f"{n}") for n in lines[0].x[:: -(-len(lines[0].x) // 12)]]
        panels.append(Panel(label, "models merged", "", lines, top=top, ticks=ticks))
    alt = "The mean of n models over their number, a line for every method"
    return Figure("The mean of n models", panels, alt, legend=panels[0].lines, on=On.DRAWN)


def _lines(found: Comparison, what: str, top: float) -> list[Line]:
    """A line for every method, and the models' own mean."""
    merged = found.methods[0].merged
    counts = [one.models for one in merged]
    means = [(name, [_of(mean["test"], what) for mean in means], False) for name, means in found.means()]
    ends = [_of(one.mean["test"], what, ends=True) for one in merged]
    lines = []
    for name, values, dashed in [*means, ("mean of the models", ends, True)]:
        beyond = [", beyond the axis" * (value > top) for value in values]
        told = [
            f"{name}: {n:g} models merged, {what} {value:.4f}{more}"
            for n, value, more in zip(counts, values, beyond, strict=True)
        ]
        label = name + " (↑ beyond the axis)" * any(beyond)
        lines.append(Line(label, counts, values, dashed=dashed, tells=told))
    return lines


def _of(point: Point, what: str, *, ends: bool = False) -> float:
    """The loss of a point, or a metric; or the mean of the models'."""
    loss, metrics = (point.ends_loss, point.ends_metrics) if ends else (point.loss, point.metrics)
    return loss if what == "loss" else metrics[what]


def ceiling(found: Comparison) -> float:
    """Where the axis of the loss ends; infinite where all methods fit.

    Models that were not aligned may lose so much more than all others that these could not be told apart.
    """
    rest: list[float] = []
    unaligned: list[float] = []
    for method in found.methods:
        for merged in method.merged:
            scores = merged.mean["test"]
            (unaligned if method.name == "none" else rest).append(scores.loss)
            rest += [scores.ends_loss] * (method.name != "none")
    needed = max(filter(math.isfinite, rest), default=0.0)
    highest = max((loss for loss in unaligned if not math.isnan(loss)), default=0.0)
    return ROOM * needed if needed and highest > FAR * needed else math.inf


FILENAMES = {"json": "compare.json", "markdown": "compare.md", "html": "compare.html", "png": "compare.png"}


def title(found: Comparison) -> str:
    return f"Merging {len(found.inputs)} models"


def headline(found: Comparison) -> str:
    """The method whose merge of all models has the least test loss, in a sentence."""
    best = min(found.methods, key=lambda method: method.merged[-1].mean["test"].loss)
    at = best.merged[-1].mean["test"]
    against = f"{change(at.loss, at.ends_loss)} against the models' mean"
    metrics = (
        f", {clean(m.name)} {fixed(at.metrics[m.key])} ({fixed(at.ends_metrics[m.key])})"
        for m in found.quantities[1:]
    )
    return f"{best.name}: test loss {fixed(at.loss)} ({against}){''.join(metrics)}"


def _gap(found: Comparison) -> str:
    """What a gap is, and in what figures are."""
    loss, *metrics = found.quantities
    unit = f", in {loss.unit}" if loss.unit else ""
    shown = [f"; {clean(metric.name)} {metric.spread}" for metric in metrics if metric.spread]
    return f"gap: loss − the models' mean loss{unit}{''.join(shown)}"


def tables(found: Comparison) -> list[Table]:
    splits = sorted(found.endpoints[0], key=lambda split: split != "test")
    made = [_models(found, splits), *(_means(found, split) for split in splits), _simplex(found, splits)]
    made.append(_geometry(found))
    if found.cycles is not None:
        shares = [*found.cycles.by_word.items(), ("all units", found.cycles.overall)]
        made.append(
            _table(
                "Cycle inconsistency of pairs",
                ("word", "share of units"),
                [(word, fixed(share)) for word, share in shares],
                CYCLE,
            )
        )
    if found.endpoint_sharpness:
        made.append(_sharpness(found))
    return made


def _table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    note: str = "",
    faint: Collection[int] = (),
    remark: str = "",
) -> Table:
    """Its first column names the rows; those of `faint` are what others are held against."""
    tones = [Tone.FAINT if place in faint else Tone.PLAIN for place in range(len(rows))]
    made = [Row(row, tone) for row, tone in zip(rows, tones, strict=True)]
    first, *others = columns
    return Table(title, [Column(first, Kind.TEXT), *map(Column, others)], made, note, remark)


def change(value: float, base: float) -> str:
    """In percent, with its sign."""
    if not (math.isfinite(value) and math.isfinite(base) and base):
        return MISSING
    return f"{100 * (value / base - 1):+.1f} %"


def _models(found: Comparison, splits: Sequence[str]) -> Table:
    names = ["loss", *(metric.name for metric in found.quantities[1:])]
    columns = ("model", *(f"{split} {what}" for split in splits for what in names))
    rows = [
        (
            f"{k}  {tail(str(model['file']), 24)}",
            *(fixed(x) for split in splits for x in ends[split].figures.values()),
        )
        for k, (model, ends) in enumerate(zip(found.inputs, found.endpoints, strict=True), start=1)
    ]
    return _table("The models", columns, rows)


def _means(found: Comparison, split: str) -> Table:
    rows: list[Sequence[str]] = []
    faint = set()
    for place, merged in enumerate(found.methods[0].merged):
        ends = merged.mean[split]
        faint.add(len(rows))
        theirs = map(fixed, ends.ends_metrics.values())
        rows.append((f"{merged.models} models", fixed(ends.ends_loss), *theirs, "", ""))
        for name, means in found.means():
            at = means[place][split]
            rows.append(
                (
                    f"  {name}",
                    fixed(at.loss),
                    *map(fixed, at.metrics.values()),
                    fixed(at.gap),
                    change(at.loss, at.ends_loss),
                )
            )
    samples = many(found.endpoints[0][split].samples, "sample")
    columns = ("their mean", "loss", *(metric.name for metric in found.quantities[1:]), "gap", "of the loss")
    reset = "; BatchNorm statistics measured anew at every mixture" if found.repair == "reset" else ""
    note = f"rows of models: the mean of their own figures. {_gap(found)}{reset}"
    return _table(f"Merged, {split}", columns, rows, note, faint, samples)


def _simplex(found: Comparison, splits: Sequence[str]) -> Table:
    rows = []
    for method in found.methods:
        for split in splits:
            rows.append(
                (
                    f"{method.name}, {split}",
                    *_gaps(method.midpoints, split),
                    *_gaps(method.points, split),
                )
            )
    count = len(found.methods[0].points)
    columns = ("gap", "pairs, mean", "largest", "points, mean", "largest")
    note = (
        f"pairs: the middles of all {len(found.methods[0].midpoints)}; points: {count} drawn uniformly from "
        f"the simplex of all {len(found.inputs)} models, with seed {found.seed}"
    )
    return _table("Between pairs, and anywhere in the simplex", columns, rows, note)


def _gaps(points: Sequence[Points], split: str) -> tuple[str, str]:
    found = spread([point[split].gap for point in points])
    return (MISSING, MISSING) if found is None else (fixed(found.mean), fixed(found.largest))


def _geometry(found: Comparison) -> Table:
    shown: list[tuple[str, Geometry]] = [("as given", found.given)]
    shown += [(method.name, method.geometry) for method in found.methods if method.name != "none"]
    null = [("null: units in random orders", found.shuffled), ("null: independent points", found.null)]
    rows = [(name, *_distances(of), *_angles(of)) for name, of in (*shown, *null)]
    columns = ("geometry", "distance", "least–largest", "angles", "least–largest")
    faint = range(len(shown), len(rows))
    return _table("Distances and angles", columns, rows, REGULAR if found.given.angles else "", faint)


def _distances(of: Geometry) -> tuple[str, str]:
    values = of.distances
    return f"{statistics.fmean(values):.2f}", f"{min(values):.1f}–{max(values):.1f}"


def _angles(of: Geometry) -> tuple[str, str]:
    """How far they lie from 60°, which the three of a triangle are on average whatever its shape."""
    values = of.angles
    if not values or any(map(math.isnan, values)):
        return MISSING, MISSING
    return f"± {statistics.pstdev(values, 60):.1f}°", f"{min(values):.1f}–{max(values):.1f}°"


def _sharpness(found: Comparison) -> Table:
    splits = list(found.endpoint_sharpness[0])
    rows, faint, ends = [], set(), found.endpoint_sharpness

    def add(name: str, *each: Curvature) -> None:
        """A row of one, or of the mean of several, whose probes are the same: errors add up."""
        cells = []
        for split in splits:
            value, error = (
                statistics.fmean(getattr(bent[split], what) for bent in each) for what in ("value", "error")
            )
            cells.append(f"{number(value)} ± {number(error)}")
        rows.append((name, *cells))

    for k, bent in enumerate(ends, start=1):
        faint.add(len(rows))
        add(f"model {k}", bent)
    for place, merged in enumerate(found.methods[0].merged):
        faint.add(len(rows))
        add(f"{merged.models} models, their mean", *ends[: merged.models])
        for method in found.methods:
            add(f"  {method.name}, merged", method.merged[place].sharpness)
    some = ends[0][splits[0]]
    note = f"{CURVED}; {some.probes} probes on {many(some.samples, 'sample')}"
    return _table("Sharpness", ("sharpness", *splits), rows, note, faint)
