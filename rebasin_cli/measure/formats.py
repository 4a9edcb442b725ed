"""A comparison as a document, and as files: JSON for programs, Markdown, a page and a picture for people."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..reports.document import (
    Code,
    Command,
    Document,
    Facts,
    Figure,
    Inline,
    Line,
    Notes,
    On,
    Panel,
)
from ..reports.facts import facts, took
from ..reports.formats import html, markdown
from ..reports.formats.json import dump
from ..reports.pictures import png
from .compared import Comparison
from .tables import headline, tables, title

FAR = 3.0  # times what all else needs: from there on what was not aligned leaves the loss axis
ROOM = 1.25  # times what all else needs, as high as the axis is then
LABELS = {"loss": "Test loss, nats per sample", "accuracy": "Test accuracy, 0–1"}


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
            Facts("How it was measured", [*facts(found), ("took", took(found.times))]),
            Notes("Notes", found.notes, word="note"),
            Facts("Inputs", inputs, on=On.PAGE),
            Command("Measure it again", found.command),
        ],
    )


def figure(found: Comparison) -> Figure:
    """Test loss and accuracy of the mean of n models; dashed: the models' own mean."""
    tops = {"loss": ceiling(found), "accuracy": math.inf}
    panels = []
    for what, label in LABELS.items():
        top = tops[what] if math.isfinite(tops[what]) else None
        lines = _lines(found, what, tops[what])
        ticks = [(n, f"{n}") for n in lines[0].x[:: -(-len(lines[0].x) // 12)]]
        panels.append(Panel(label, "models merged", "", lines, top=top, ticks=ticks))
    alt = "The mean of n models over their number, a line for every method"
    return Figure("The mean of n models", panels, alt, legend=panels[0].lines, on=On.DRAWN)


def _lines(found: Comparison, what: str, top: float) -> list[Line]:
    """A line for every method, and the models' own mean."""
    merged = found.methods[0].merged
    counts = [one.models for one in merged]
    means = [(name, [getattr(mean["test"], what) for mean in means], False) for name, means in found.means()]
    ends = [getattr(one.mean["test"], f"ends_{what}") for one in merged]
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


RENDER: dict[str, Callable[[Comparison], str | bytes]] = {
    "json": lambda found: dump(found.to_dict()),
    "markdown": lambda found: markdown.text(document(found)),
    "html": lambda found: html.page(document(found)),
    "png": lambda found: png(document(found)),
}
FILENAMES = {"json": "compare.json", "markdown": "compare.md", "html": "compare.html", "png": "compare.png"}
