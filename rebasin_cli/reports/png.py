"""A picture of loss and accuracy along the path (PNG)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from . import Report
from ._format import clean, headline, splits, title
from ._plot import chord, drawing_order, is_few, logarithmic, points, second, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILENAME = "report.png"

FONT = "DejaVu Sans"  # comes with matplotlib, so that every machine draws the same
INK, FAINT, GRID, CHORD = "#1f2328", "#656d76", "#e4e7eb", "#9aa1a9"
DASHED, DOTTED = (0, (4, 2.5)), (0, (1, 2))
DPI = 160


def render(report: Report) -> bytes:
    """Two panels, loss and accuracy over λ; equal reports give equal bytes with one version of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Neither pyplot nor savefig: both obey settings of the user that would change the picture.
    figure = Figure(figsize=(10, 4.9), dpi=DPI, facecolor="white", layout="none")
    canvas = FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.775, bottom=0.2, wspace=0.17)
    panels = figure.subplots(1, 2)
    log = logarithmic(report)
    _panel(panels[0], report, "loss", "loss, nats per sample" + (" (logarithmic)" if log else ""), log)
    _panel(panels[1], report, "accuracy", "accuracy, 0–1", False)
    words: dict[str, Any] = {"fontfamily": FONT, "parse_math": False, "x": 0.07}
    heading = _drawable(title(report, 30), 78)
    figure.text(y=0.93, s=heading, fontsize=13, fontweight="bold", color=INK, **words)
    figure.text(y=0.867, s=_drawable(headline(report), 110), fontsize=10, color=FAINT, **words)
    _legend(figure, report)
    file = io.BytesIO()
    canvas.print_png(file, metadata={"Software": None})
    return file.getvalue()


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
                marker=style.marker if first or few else None,
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
        notes = [word for word, said in (("shipped", row.shipped), ("control", row.control)) if said]
        handles.append(
            Line2D(
                [],
                [],
                color=style.color[0],
                linestyle="none" if few else "-",
                linewidth=3.0 if style.shipped else 1.5,
                marker=style.marker,
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
        ncols=min(len(handles), 7) if len(handles) <= 7 else -(-len(handles) // 2),
        frameon=False,
        prop={"family": FONT, "size": 9},
        handlelength=2.4,
        columnspacing=1.6,
        labelcolor=INK,
    )
    for text, row in zip(legend.get_texts(), report.rows, strict=False):
        text.set_parse_math(False)
        text.set_fontweight("bold" if row.shipped else "normal")


def _drawable(text: str, longest: int) -> str:
    """`text` in letters that the font has (Latin, Greek, Cyrillic), shortened in its middle."""
    text = "".join(char if ord(char) < 0x530 or char in "–—…→½¼¾≤≥" else "\u25a1" for char in text)
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"
