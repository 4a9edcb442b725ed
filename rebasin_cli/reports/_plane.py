"""A picture of loss and accuracy over a plane through three models, with the paths in it (PNG)."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..runtime.text import many
from .png import DPI, FAINT, FONT, INK, _drawable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, ABOVE, BELOW = 12.6, 1.1, 0.75  # inches: all of it, and what lies above and below the panels
LEFT, RIGHT, GAP = 0.055, 0.922, 0.24  # of the width, and between panels, of a panel's
LEVELS = 13
NAME = 16  # points from a model to its name
LEAST = 1e-4  # nats: below, a logarithmic scale would show nothing else
FLAT = 4.0  # times as wide as high, or as high as wide: from there on distances have two scales
STYLES = ("-", "--", ":", "-.")


def render(found: Mapping[str, Any]) -> bytes:
    """Two panels of filled contours; equal values give equal bytes with one matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Neither pyplot nor savefig: both obey settings of the user that would change the picture.
    height = _height(found)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white", layout="none")
    canvas = FigureCanvasAgg(figure)
    margins = {"top": 1 - ABOVE / height, "bottom": BELOW / height, "left": LEFT, "right": RIGHT}
    figure.subplots_adjust(**margins, wspace=GAP)
    panels = figure.subplots(1, 2)
    split = found["data"]["split"]
    ceiling = found["ceiling"]
    _panel(panels[0], found, "loss", f"{split} loss, nats (up to {ceiling:.2f})", loss_levels(found))
    _panel(panels[1], found, "accuracy", f"{split} accuracy, 0–1", accuracy_levels(found))
    handles, labels = panels[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, frameon=False, prop={"family": FONT, "size": 9}, labelcolor=INK, loc="lower left",
        ncols=4, bbox_to_anchor=(LEFT - 0.005, 0.03 / height), handlelength=2.6,
    )  # fmt: skip
    for told in legend.get_texts():
        told.set_parse_math(False)
    files = " and ".join(str(model["file"]).rpartition("/")[2] for model in found["inputs"])
    words: dict[str, Any] = {"fontfamily": FONT, "parse_math": False, "x": LEFT}
    heading = _drawable(f"The plane through {files}", 78)
    figure.text(y=1 - 0.38 / height, s=heading, fontsize=13, fontweight="bold", color=INK, **words)
    figure.text(y=1 - 0.66 / height, s=_drawable(said(found), 150), fontsize=9.5, color=FAINT, **words)
    file = io.BytesIO()
    canvas.print_png(file, metadata={"Software": None})
    return file.getvalue()


def _height(found: Mapping[str, Any]) -> float:
    """Inches of the figure: panels are as high as their scale asks for, and nothing is left blank."""
    wide, tall = (its[-1] - its[0] for its in (found["x"], found["y"]))
    panel = WIDTH * (RIGHT - LEFT) / (2 + GAP)
    return ABOVE + BELOW + (min(panel * tall / wide, 1.2 * panel) if _alike(found) else 0.86 * panel)


def said(found: Mapping[str, Any]) -> str:
    """What was measured, in a line."""
    grid = f"{len(found['x'])}×{len(found['y'])} points"
    reset = ", BatchNorm statistics measured anew at each" if found["data"]["reset"] else ""
    axes = "distances between weights" + ("" if _alike(found) else ", each axis on a scale of its own")
    return f"{grid}, {many(found['data']['samples'], 'sample')} of {found['data']['name']}{reset}; {axes}"


def _alike(found: Mapping[str, Any]) -> bool:
    """Whether both axes can have one scale."""
    wide, tall = (its[-1] - its[0] for its in (found["x"], found["y"]))
    return 1 / FLAT < wide / tall < FLAT


def loss_levels(found: Mapping[str, Any]) -> list[float]:
    """From the lowest loss of the grid to the ceiling, in equal ratios."""
    values = [v for row in found["loss"] for v in row if math.isfinite(v)] or [1.0]
    high = max(found["ceiling"], 2 * LEAST)
    low = min(max(LEAST, min(values)), high / 2)
    return [low * (high / low) ** (k / (LEVELS - 1)) for k in range(LEVELS)]


def accuracy_levels(found: Mapping[str, Any]) -> list[float]:
    values = [v for row in found["accuracy"] for v in row if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(values), max(values)
    high = high if high > low else low + 0.01
    return [low + (high - low) * k / (LEVELS - 1) for k in range(LEVELS)]


def _panel(panel: Axes, found: Mapping[str, Any], quantity: str, label: str, levels: Sequence[float]) -> None:
    from matplotlib.colors import BoundaryNorm

    loss = quantity == "loss"
    low, high = levels[0], levels[-1]
    worst = high if loss else low  # what is no number is as bad as can be
    values = [[min(max(v, low), high) if math.isfinite(v) else worst for v in row] for row in found[quantity]]
    colors = "viridis_r" if loss else "viridis"
    norm = BoundaryNorm(levels, 256)
    filled = panel.contourf(found["x"], found["y"], values, levels=levels, cmap=colors, norm=norm)
    panel.contour(found["x"], found["y"], values, levels=levels, colors="white", linewidths=0.4, alpha=0.6)
    beside = panel.inset_axes((1.025, 0, 0.042, 1))  # as high as the panel, whatever its scale makes of it
    bar = panel.figure.colorbar(filled, cax=beside)
    bar.set_ticks(levels[::2], labels=[f"{level:#.3g}" for level in levels[::2]])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    _paths(panel, found)
    panel.set_aspect("equal" if _alike(found) else "auto", adjustable="box")
    panel.set_title(label, loc="left", fontsize=10, color=INK, pad=7)
    for text in (panel.title, *panel.get_xticklabels(), *panel.get_yticklabels(), *bar.ax.get_yticklabels()):
        text.set_fontfamily(FONT)
        text.set_parse_math(False)
    for axis in (panel, bar.ax):
        axis.tick_params(which="both", length=0, labelsize=9, labelfontfamily=FONT, labelcolor=FAINT, pad=4)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _paths(panel: Axes, found: Mapping[str, Any]) -> None:
    """The straight lines, the curves and the models, with their names."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=3, foreground="white")]
    for number, line in enumerate([*found["lines"], *found["curves"]]):
        x, y = zip(*line["points"], strict=True)
        style = STYLES[number % len(STYLES)]
        panel.plot(
            x, y, color=INK, linewidth=1.6, linestyle=style, path_effects=halo, zorder=3,
            label=_drawable(line["name"], 40),
        )  # fmt: skip
    for model, away in zip(found["points"], _outwards(found), strict=True):
        place = model["x"], model["y"]
        panel.plot(*place, marker="o", markersize=7, color="white", markeredgecolor=INK, zorder=4)
        panel.annotate(
            _drawable(model["name"], 20), place, xytext=away, textcoords="offset points", ha="center",
            va="center", fontsize=11, fontweight="bold", color=INK, path_effects=halo, zorder=5,
            fontfamily=FONT, parse_math=False,
        )  # fmt: skip


def _outwards(found: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Where each model's name is written, in points from it: away from the others, as paths go to these."""
    wide, tall = (its[-1] - its[0] for its in (found["x"], found["y"]))
    if _alike(found):
        wide = tall
    places = [(model["x"] / wide, model["y"] / tall) for model in found["points"]]
    x, y = (sum(values) / len(places) for values in zip(*places, strict=True))
    offsets = []
    for place in places:
        far = math.hypot(place[0] - x, place[1] - y) or 1.0
        offsets.append((NAME * (place[0] - x) / far, NAME * (place[1] - y) / far))
    return offsets
