"""How alike matched units are: the figure and table of a barrier report, and a document of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..runtime.text import clean, many
from . import format as f
from .document import (
    Block,
    Column,
    Document,
    Figure,
    Kind,
    Line,
    On,
    Panel,
    Row,
    Table,
    Tone,
)
from .facts import ends
from .pictures import PALETTE

SERIES = (("before", PALETTE[0], "o", -0.12), ("after", PALETTE[1], "s", 0.12))
SHOWN = 12  # names of words that fit below the drawing


def drawn(words: Sequence[Mapping[str, Any]], on: On = On.DRAWN) -> Figure:
    """Mean ± standard deviation over a word's units, before and after alignment."""
    lines = []
    for when, color, marker, shift in SERIES:
        found = [
            (k, *reach, str(word.get("word", "")))
            for k, word in enumerate(words)
            if (reach := _reach(word, when))
        ]
        told = [f"{name} {when} alignment: {mean:z.3f} ± {std:.3f}" for _, mean, std, name in found]
        x, mean, std = [k + shift for k, *_ in found], [one[1] for one in found], [one[2] for one in found]
        look: dict[str, Any] = {"color": color, "marker": marker, "joined": False, "tells": told}
        lines.append(Line(f"{when} alignment", x, mean, errors=std, **look))
    every = max(1, -(-len(words) // SHOWN))
    ticks = [(k, str(words[k].get("word", ""))) for k in range(0, len(words), every)]
    name = "Correlation of matched units, mean ± std"
    panel = Panel(name, "", "", lines, ticks=ticks, across=(-0.5, max(len(words), 1) - 0.5))
    alt = "Matched correlation per word, before and after alignment"
    return Figure("Matched correlation, before and after alignment", [panel] if words else [], alt, on=on)


def matched(words: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Of a barrier report: the figure, and its table."""
    rows = []
    for found in words:
        counts = [f.number(found.get(what)) for what in ("units", "dead")]
        both = (found.get(when) or {} for when in ("before", "after"))
        spreads = (" ± ".join(_told(its.get(what)) for what in ("mean", "std")) for its in both)
        rows.append(Row([clean(found.get("word", "")), *counts, *spreads]))
    heads = ("units", "dead", "before", "after")
    columns = [Column("matched correlation", Kind.TEXT), *map(Column, heads)]
    table = Table("Matched correlation, mean ± std over units", columns, rows, headed=True)
    return [drawn(words, on=On.PAGE), table]


def _told(value: Any) -> str:
    return f"{value:z.3f}" if f.is_number(value) else f.fixed(value)


def document(found: Mapping[str, Any], files: Sequence[Any], line: str = "") -> Document:
    """What `rebasin signature` found: a row a word, and how stable the match is."""
    stable, curved = found["stability"], "curve" in found
    counts = stable["samples"][:-1] if stable else []
    first, second = ("as it is", "matched") if curved else ("before", "after")
    names = ["units", "dead", first, "± std", second, "± std", *["line ½", "end"] * curved]
    names += [f"as on {f.number(count)}" for count in counts]
    rows = []
    for row in found["signature"]:
        shares = stable["words"][row["word"]][:-1] if stable else ()
        figures = [row[when][what] for when in ("before", "after") for what in ("mean", "std")]
        figures += [row[what]["mean"] for what in ("line", "ends") if curved]
        cells = [row["word"], f.number(row["units"]), f.number(row["dead"]), *map(f.short, figures)]
        rows.append(Row([*cells, *map(_share, shares)]))
    if stable:
        rows.append(Row(["all", *[""] * 6, *map(_share, stable["overall"][:-1])], Tone.CHOSEN))
    how = (
        "A and the curve at t = ½, as it is and once its units are matched"
        if curved
        else found["match"]["method"]
    )
    title = f"Signature of {' and '.join(map(str, files))}" if files else "Signature"
    table = Table("Correlation of matched units", [Column("word", Kind.TEXT), *map(Column, names)], rows)
    return Document(
        title,
        [f"{how}, {many(found['samples'], 'sample')} of {found['data']}"],
        [
            drawn(found["signature"]),
            table,
            *([_bounds(found["bounds"])] if "bounds" in found else []),
            *ends(found, line),
        ],
        name=f"Signature of {' and '.join(str(file).rpartition('/')[2] for file in files)}",
    )


def _bounds(found: Mapping[str, Any]) -> Table:
    """A line a layer, and one for the loss."""
    both = [found[name] for name in ("unaligned", "aligned")]
    rows = [
        Row([str(k), *(f"{row[what]:.4g}" for row in layers for what in ("actual", "bound"))])
        for k, layers in enumerate(zip(*(its["layers"] for its in both), strict=True), start=1)
    ]
    rows.append(Row(["loss", *(f"{its[what]:.4g}" for its in both for what in ("loss", "bound"))]))
    columns = [Column("layer", Kind.TEXT), *map(Column, ("unaligned", "bound", "aligned", "bound"))]
    return Table("Bounds at t = ½", columns, rows, remark=many(found["samples"], "sample"))


def _share(value: float) -> str:
    return f.MISSING if math.isnan(value) else f"{value:.1%}"


def _reach(word: Mapping[str, Any], when: str) -> tuple[float, float] | None:
    """Mean and standard deviation; None where they are no numbers."""
    found = word.get(when) or {}
    mean, std = found.get("mean"), found.get("std")
    if isinstance(mean, int | float) and isinstance(std, int | float) and math.isfinite(mean + std):
        return mean, std
    return None
