"""The panels of an outcome as one PNG: equal outcomes give equal bytes with one version of matplotlib."""

from __future__ import annotations

import io
import math
from typing import Any

from ...reports._plot import PALETTE
from ...reports.png import CHORD, FAINT, FONT, GRID, INK
from .outcome import Outcome, Panel

COLORS = [light for name, (light, _) in PALETTE.items() if name not in ("logit ensemble", "other")]
MARKERS = "os^Dvpx"
DPI = 96
TICKS = ((15, (1, 2, 3, 5, 7)), (1000, (1, 2, 5)), (math.inf, (1,)))  # up to a factor between the ends
ACROSS, WIDE, HIGH = 3, 4.3, 3.5  # panels a row; inches a panel


def render(title: str, outcome: Outcome) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Neither pyplot nor savefig: both obey settings of the user that would change the picture.
    count = len(outcome.panels)
    across = min(count, ACROSS)
    rows = -(-count // across)
    high = HIGH * rows + 0.45
    figure = Figure(figsize=(max(WIDE * across, 6.5), high), dpi=DPI, facecolor="white", layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK, fontfamily=FONT)
    panels = figure.subplots(rows, across, squeeze=False).ravel()
    for panel, told in zip(panels, outcome.panels, strict=False):
        _draw(panel, told)
    for panel in panels[count:]:
        panel.set_visible(False)
    file = io.BytesIO()
    png: Any = canvas.print_png
    png(file, metadata={"Software": None})
    return file.getvalue()


def _draw(panel: Any, told: Panel) -> None:
    for place, line in enumerate(told.lines):
        color, style = COLORS[place % len(COLORS)], "--" if line.dashed else "-"
        if line.bars:
            panel.bar(line.x, line.y, width=line.bars, color=color, alpha=0.55, label=line.label)
            continue
        marker = MARKERS[place % len(MARKERS)] if len(line.x) <= 40 and not line.dashed else None
        panel.plot(
            line.x, line.y, style, color=color, label=line.label, marker=marker, markersize=3.5, linewidth=1.2
        )
        if line.between:
            low, high = zip(*line.between, strict=True)
            panel.fill_between(line.x, low, high, color=color, alpha=0.15, linewidth=0)
    for x, said in told.marks:
        panel.axvline(x, color=CHORD, linewidth=1, linestyle=":", label=said)
    for axis in told.log:
        (panel.set_xscale if axis == "x" else panel.set_yscale)("log")
        _numbered(panel.xaxis if axis == "x" else panel.yaxis)
    if told.floor is not None:
        panel.set_ylim(bottom=told.floor)
    panel.set_title(told.title, fontsize=9.5, color=INK, fontfamily=FONT, loc="left")
    panel.set_xlabel(told.x, fontsize=8.5, color=FAINT, fontfamily=FONT)
    panel.set_ylabel(told.y, fontsize=8.5, color=FAINT, fontfamily=FONT)
    panel.tick_params(labelsize=8, colors=FAINT, length=2)
    panel.grid(color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    if any(line.label for line in told.lines):
        panel.legend(loc="best", fontsize=7, frameon=False)  # by default matplotlib warns where it is slow


def _numbered(axis: Any) -> None:
    """Plain numbers along a logarithmic axis, as many as have room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    factor = high / low if low > 0 else math.inf
    axis.set_major_locator(LogLocator(subs=next(subs for most, subs in TICKS if factor <= most)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
