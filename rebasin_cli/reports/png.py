"""A picture of loss and accuracy along the path, and what else has curves (PNG)."""

from __future__ import annotations

import io
import re
import textwrap
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import Report
from ._conclusion import conclude
from ._diagrams import reliability
from ._format import best, clean, fixed, headline, learning, splits, tags, title
from ._plot import PALETTE, chord, drawing_order, is_few, logarithmic, points, second, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._diagrams import Diagram

FILENAME = "report.png"
HELP = "Draw the report as one picture."

FONT = "DejaVu Sans"  # comes with matplotlib, so that every machine draws the same
INK, FAINT, GRID, CHORD = "#1f2328", "#656d76", "#e4e7eb", "#9aa1a9"
DASHED, DOTTED = (0, (4, 2.5)), (0, (1, 2))
DPI = 160
BESIDE = 1.75  # inches
FILLED = {"+": "P", "x": "X"}  # matplotlib's crosses of thin lines have no fill


_drawn: list[tuple[weakref.ref[Report], bytes]] = []  # the last one, which the HTML page shows as well


def render(report: Report) -> bytes:
    """Panels of loss and accuracy over λ, of what was learnt, of how sure the models are, as far as known.

    Equal reports give equal bytes with one version of matplotlib.
    """
    if not _drawn or _drawn[0][0]() is not report:
        _drawn[:] = [(weakref.ref(report), _draw(report))]
    return _drawn[0][1]


def _draw(report: Report) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Neither pyplot nor savefig: both obey settings of the user that would change the picture.
    diagrams, rows = reliability(report), learning(report)
    more = bool(diagrams) + bool(rows)
    beside = BESIDE if diagrams else 0.15  # inches right of the last panel, for its legend
    wide = 9.85 + 4.2 * more + beside
    figure = Figure(figsize=(wide, 5.4), dpi=DPI, facecolor="white", layout="none")
    canvas = FigureCanvasAgg(figure)
    left = 0.7 / wide
    figure.subplots_adjust(left=left, right=1 - beside / wide, top=0.73, bottom=0.23, wspace=0.17)
    panels = figure.subplots(1, 2 + more, width_ratios=[1, 1, *[0.72] * more])
    log = logarithmic(report)
    _panel(panels[0], report, "loss", "loss, nats per sample" + (" (logarithmic)" if log else ""), log)
    _panel(panels[1], report, "accuracy", "accuracy, 0–1", False)
    if rows:
        _learning(panels[2], rows)
    if diagrams:
        _reliability(panels[-1], diagrams, splits(report)[0])
    words: dict[str, Any] = {"fontfamily": FONT, "parse_math": False, "x": left}
    heading = _drawable(title(report, 30), 78)
    figure.text(y=0.94, s=heading, fontsize=13, fontweight="bold", color=INK, **words)
    figure.text(y=0.885, s=_drawable(headline(report), 110), fontsize=10, color=FAINT, **words)
    said = _sentences(_drawable(conclude(report), 4_000), 122 + 53 * more, lines=2)
    figure.text(y=0.862, s="\n".join(said), fontsize=9.5, color=INK, va="top", linespacing=1.35, **words)
    _legend(figure, report)
    file = io.BytesIO()
    canvas.print_png(file, metadata={"Software": None})
    return file.getvalue()


def _reliability(panel: Axes, diagrams: Sequence[Diagram], split: str) -> None:
    """Accuracy over confidence; rare bins are hollow."""
    panel.plot([0, 1], [0, 1], color=CHORD, linewidth=1, linestyle=DOTTED, zorder=1)
    for place, diagram in enumerate(diagrams):
        bars = diagram.bars()
        color, marker = diagram.color[0], "osD^v"[place % 5]
        xy = [(sure, right) for _, sure, right, _ in bars]
        label = f"{_drawable(diagram.name, 22)}\nECE {fixed(diagram.ece)}"
        panel.plot(*zip(*xy, strict=True), color=color, linewidth=1, zorder=2 + place, alpha=0.6)
        for rare in (False, True):
            some = [(sure, right) for _, sure, right, few in bars if few == rare]
            x, y = zip(*some, strict=True) if some else ((), ())
            panel.plot(
                x,
                y,
                color=color,
                linestyle="none",
                marker=marker,
                markersize=4,
                markerfacecolor="white" if rare else color,
                markeredgewidth=0.8,
                label=None if rare else label,
                zorder=3 + place,
                clip_on=False,
            )
    panel.set_xlim(0, 1)
    panel.set_ylim(0, 1.02)
    panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
    panel.set_xlabel("confidence", fontsize=9, fontfamily=FONT, color=FAINT, labelpad=2)
    name = f"accuracy over confidence, {len(diagrams[0].bins.samples)} bins, {_drawable(split, 12)}"
    panel.legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1.02),  # points may lie anywhere in the panel
        frameon=False,
        prop={"family": FONT, "size": 8},
        labelcolor=INK,
        labelspacing=0.8,
    )
    _clean(panel, name)


def _learning(panel: Axes, rows: Sequence[Mapping[str, float]]) -> None:
    """Held-out loss over the steps of a search; a square on what was kept."""
    kept, color = best(rows), PALETTE["aligned"][0]
    steps, losses = [row["step"] for row in rows], [row["held_out_loss"] for row in rows]
    panel.plot(steps, losses, color=color, linewidth=1.5)
    panel.plot([kept["step"]], [kept["held_out_loss"]], color=color, marker="s", markersize=6, clip_on=False)
    panel.set_xlabel(f"step; kept: {kept['step']:.0f}", fontsize=9, fontfamily=FONT, color=FAINT, labelpad=2)
    panel.margins(x=0.02)
    _clean(panel, "held-out loss at the midpoint, as it was learnt")


def _panel(panel: Axes, report: Report, quantity: str, label: str, log: bool) -> None:
    found, shown = styles(report), splits(report)[:2]
    if log:
        panel.set_yscale("log")
    for split in shown[:1]:
        line = chord(report, quantity, split)
        if line:
            panel.plot(*zip(*line, strict=True), color=CHORD, linewidth=1, linestyle=DOTTED, zorder=1)
    for place, row in enumerate(drawing_order(report)):
        style = found[row.name]
        for split in shown:
            xy = points(row.curves[split], quantity) if split in row.curves else []
            if not xy:
                continue
            first, few = split == shown[0], is_few(row, split)
            panel.plot(
                *zip(*xy, strict=True),
                color=style.color[0],
                linestyle="none" if few else "-" if first else DASHED,
                linewidth=(3.0 if style.shipped else 1.5) if first else (1.5 if style.shipped else 0.9),
                marker=FILLED.get(style.marker, style.marker) if first or few else None,
                markevery=1 if len(xy) < 14 else 2,
                markersize=(6.5 if style.shipped else 4.5) if first else 3.5,
                markerfacecolor="white" if few and not first else style.color[0],
                markeredgecolor="white" if first else style.color[0],
                markeredgewidth=0.7,
                zorder=2 + place + (len(report.rows) if first else 0),
                clip_on=False,
            )
    panel.set_xlim(-0.02, 1.02)
    panel.margins(y=0.05)
    panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["A\nλ = 0", "¼", "½", "¾", f"{second(report)}\nλ = 1"])
    _clean(panel, label)


def _clean(panel: Axes, label: str) -> None:
    panel.set_title(label, loc="left", fontsize=10, fontfamily=FONT, color=INK, pad=7, y=1.0)
    panel.grid(False, which="both", axis="x")
    panel.grid(True, axis="y", color=GRID, linewidth=0.8, linestyle="-", which="major")
    panel.set_axisbelow(True)
    panel.set_facecolor("white")
    panel.tick_params(which="both", length=0, labelsize=9, labelfontfamily=FONT, labelcolor=FAINT, pad=6)
    for side, spine in panel.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color("#b8bec5")


def _legend(figure: Any, report: Report) -> None:
    from matplotlib.lines import Line2D

    found, shown, handles = styles(report), splits(report)[:2], []
    for row in report.rows:
        style = found[row.name]
        few = bool(row.curves) and all(is_few(row, split) for split in row.curves)
        notes = tags(row)
        handles.append(
            Line2D(
                [],
                [],
                color=style.color[0],
                linestyle="none" if few else "-",
                linewidth=3.0 if style.shipped else 1.5,
                marker=FILLED.get(style.marker, style.marker),
                markersize=6.5 if style.shipped else 5,
                markeredgecolor="white",
                markeredgewidth=0.7,
                label=_drawable(clean(row.name), 30) + (f" ({', '.join(notes)})" if notes else ""),
            )
        )
    for split, line, width in zip(shown, ("-", DASHED), (1.5, 0.9), strict=False):
        handles.append(Line2D([], [], color=INK, linestyle=line, linewidth=width, label=_drawable(split, 12)))
    handles.append(Line2D([], [], color=CHORD, linestyle=DOTTED, linewidth=1, label="chord A–B"))
    legend = figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.01),
        ncols=_columns(len(handles), figure.get_figwidth()),
        frameon=False,
        prop={"family": FONT, "size": 9},
        handlelength=2.4,
        columnspacing=1.6,
        labelcolor=INK,
    )
    for text, row in zip(legend.get_texts(), report.rows, strict=False):
        text.set_parse_math(False)
        text.set_fontweight("bold" if row.shipped else "normal")


def _columns(entries: int, width: float) -> int:
    """Of the legend: as few rows as the width allows."""
    most = 7 if width <= 10 else 5
    return entries if entries <= most else -(-entries // -(-entries // most))


def _sentences(text: str, width: int, *, lines: int) -> list[str]:
    """As many whole sentences as the lines hold; of a first one that is too long, its beginning."""
    sentences = re.split(r"(?<=\.) (?=[A-Z])", text)
    for count in range(len(sentences), 0, -1):
        said = textwrap.wrap(" ".join(sentences[:count]), width)
        if len(said) <= lines:
            return said
    return textwrap.wrap(text, width, max_lines=lines, placeholder=" …")


def _drawable(text: str, longest: int) -> str:
    """`text` in letters that the font has (Latin, Greek, Cyrillic), shortened in its middle."""
    text = "".join(char if ord(char) < 0x530 or char in "–—…→½¼¾≤≥" else "\u25a1" for char in text)
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"
