"""A picture of how alike matched units are, layer by layer (PNG)."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .png import CHORD, DPI, FAINT, FONT, GRID, INK, _drawable

SERIES = (("before", CHORD, "o", -0.12), ("after", "#0969da", "s", 0.12))
SHOWN = 24  # names of words that fit below the drawing


def render(rows: Sequence[Mapping[str, Any]], of: str) -> bytes:
    """Mean ± standard deviation a word, before and after; equal rows give equal bytes with one matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Neither pyplot nor savefig: both obey settings of the user that would change the picture.
    figure = Figure(figsize=(8, 4.4), dpi=DPI, facecolor="white", layout="none")
    canvas = FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.axhline(0, color=GRID, linewidth=1.2, zorder=1)
    for name, color, marker, shift in SERIES:
        x = [k + shift for k in range(len(rows))]
        mean, std = ([row[name][what] for row in rows] for what in ("mean", "std"))  # NaN is not drawn
        panel.errorbar(
            x, mean, std, color=color, marker=marker, markersize=5, linewidth=1.2, elinewidth=1.5, capsize=3,
            label=f"{name} alignment", zorder=2,
        )  # fmt: skip
    step = max(1, math.ceil(len(rows) / SHOWN))
    ticks = range(0, len(rows), step)
    labels = [_drawable(rows[k]["word"], 18) for k in ticks]
    crowded = max(map(len, labels), default=0) * len(labels) > 70
    panel.set_xticks(list(ticks), labels, **({"rotation": 40, "ha": "right"} if crowded else {}))
    figure.subplots_adjust(left=0.09, right=0.98, top=0.82, bottom=0.24 if crowded else 0.1)
    panel.set_xlim(-0.5, max(len(rows), 1) - 0.5)
    panel.set_title("correlation of matched units, mean ± std", loc="left", fontsize=10, color=INK, pad=7)
    panel.title.set_fontfamily(FONT)
    panel.grid(False, which="both", axis="x")
    panel.grid(True, axis="y", color=GRID, linewidth=0.8, linestyle="-")
    panel.set_axisbelow(True)
    panel.tick_params(which="both", length=0, labelsize=9, labelfontfamily=FONT, labelcolor=FAINT, pad=6)
    for side, spine in panel.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color("#b8bec5")
    legend = panel.legend(
        frameon=False, prop={"family": FONT, "size": 9}, labelcolor=INK, loc="lower right", ncols=2,
        bbox_to_anchor=(1, 1),
    )  # fmt: skip
    for text in (*legend.get_texts(), panel.title, *panel.get_xticklabels()):
        text.set_parse_math(False)
    heading = _drawable(f"Signature of {of}", 78)
    figure.text(
        0.09, 0.935, heading, fontsize=12, fontweight="bold", color=INK, fontfamily=FONT, parse_math=False
    )
    file = io.BytesIO()
    canvas.print_png(file, metadata={"Software": None})
    return file.getvalue()
