"""A comparison as files: JSON for programs, Markdown and a page for people, a picture of the figures."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..reports._facts import facts, took
from ..reports._format import clean
from ..reports._markup import escape, fence
from ..reports._plot import MARKERS, PALETTE
from ..reports.json import dump
from ..reports.png import DASHED, DPI, FAINT, FONT, GRID, INK
from .compared import Comparison
from .tables import Table, headline, tables, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = [light for light, _ in PALETTE.values()]
FAR = 3.0  # times what all else needs: from there on what was not aligned leaves the loss axis
ROOM = 1.25  # times what all else needs, as high as the axis is then


def json(found: Comparison) -> str:
    """Strictly valid JSON with the fields of `Comparison`, `schema` "rebasin.compare/3" first."""
    return dump(found.to_dict())


def markdown(found: Comparison) -> str:
    """GitHub-flavoured Markdown; text from outside is escaped."""
    blocks = [f"## {escape(title(found))}", f"**{escape(headline(found))}**"]
    for table in tables(found):
        blocks += [
            f"### {escape(table.title)}",
            _table(table),
            f"<sub>{escape(table.note)}</sub>" * bool(table.note),
        ]
    blocks += ["### How it was measured", "\n".join(f"- {w}: {escape(t)}" for w, t in facts(found))]
    blocks += ["\n".join(f"- {escape(note)}" for note in found.notes), fence(found.command)]
    blocks += [f"<sub>took {escape(took(found.times))}</sub>"]
    return "\n\n".join(block for block in blocks if block) + "\n"


def html(found: Comparison) -> str:
    """One self-contained page."""
    from .page import render

    return render(found)


def _table(table: Table) -> str:
    lines = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)]]
    lines += [
        [f"*{escape(cell.strip())}*" if k in table.faint and cell else escape(cell.strip()) for cell in row]
        for k, row in enumerate(table.rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def picture(found: Comparison) -> bytes:
    """A PNG of two panels, test loss and accuracy of the mean of n models; dashed: the models' own mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # Neither pyplot nor savefig: both obey settings of the user that would change the picture.
    figure = Figure(figsize=(10, 4.6), dpi=DPI, facecolor="white", layout="none")
    canvas = FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.8, bottom=0.2, wspace=0.17)
    panels = figure.subplots(1, 2)
    top = {"loss": ceiling(found), "accuracy": math.inf}
    for panel, what, label in zip(panels, ("loss", "accuracy"), ("loss, nats", "accuracy, 0–1"), strict=True):
        counts = [merged.models for merged in found.methods[0].merged]
        ends = [getattr(merged.mean["test"], f"ends_{what}") for merged in found.methods[0].merged]
        panel.plot(counts, ends, color=FAINT, linestyle=DASHED, linewidth=1.2, label="mean of the models")
        for k, (name, means) in enumerate(found.means()):
            values = [getattr(mean["test"], what) for mean in means]
            style = {"color": COLORS[k % len(COLORS)], "marker": MARKERS[k % len(MARKERS)]}
            beyond = [(n, value) for n, value in zip(counts, values, strict=True) if value > top[what]]
            label_ = clean(name) + " (↑ beyond the axis)" * bool(beyond)
            panel.plot(counts, values, linewidth=1.6, markersize=5, label=label_, **style)
            _leaving(panel, beyond, top[what], style["color"])
        if math.isfinite(top[what]):
            panel.set_ylim(top=top[what])
        panel.set_title(f"test {label}", loc="left", fontsize=10, fontfamily=FONT, color=INK)
        panel.set_xlabel("models merged", fontsize=9, fontfamily=FONT, color=FAINT)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(True, axis="y", color=GRID, linewidth=0.8)
        panel.set_axisbelow(True)
        panel.tick_params(which="both", length=0, labelsize=9, labelfontfamily=FONT, labelcolor=FAINT)
        for side, spine in panel.spines.items():
            spine.set_visible(side == "bottom")
    words = {"fontfamily": FONT, "parse_math": False, "x": 0.07}
    figure.text(y=0.93, s=title(found), fontsize=13, fontweight="bold", color=INK, **words)
    figure.text(y=0.875, s=headline(found), fontsize=9.5, color=FAINT, **words)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=min(len(labels), 6),
        frameon=False,
        prop={"family": FONT, "size": 9},
    )
    file = io.BytesIO()
    canvas.print_png(file, metadata={"Software": None})
    return file.getvalue()


def ceiling(found: Comparison) -> float:
    """Where the axis of the loss ends; infinite where all methods fit.

    Models that were not aligned may lose so much more than all others that these could not be told apart.
    """
    rest, unaligned = [], []
    for method in found.methods:
        for merged in method.merged:
            scores = merged.mean["test"]
            (unaligned if method.name == "none" else rest).append(scores.loss)
            rest += [scores.ends_loss] * (method.name != "none")
    needed = max(filter(math.isfinite, rest), default=0.0)
    highest = max((loss for loss in unaligned if not math.isnan(loss)), default=0.0)
    return ROOM * needed if needed and highest > FAR * needed else math.inf


def _leaving(panel: Axes, beyond: Sequence[tuple[int, float]], top: float, color: str) -> None:
    """Arrows at the upper edge, with the values that lie beyond it."""
    for count, value in beyond:
        words = {"fontsize": 8, "fontfamily": FONT, "parse_math": False, "color": color}
        panel.annotate(
            f"{value:.3g}",
            xy=(count, top),
            xytext=(0, -20),
            textcoords="offset points",
            ha="center",
            va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            arrowprops={"arrowstyle": "-|>", "color": color, "shrinkA": 0, "shrinkB": 0},
            **words,
        )


RENDER: dict[str, Callable[[Comparison], str | bytes]] = {
    "json": json,
    "markdown": markdown,
    "html": html,
    "png": picture,
}
FILENAMES = {"json": "compare.json", "markdown": "compare.md", "html": "compare.html", "png": "compare.png"}
