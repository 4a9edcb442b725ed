"""A picture of loss and accuracy over a plane through three models, with the paths in it (PNG)."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .png import DPI, FAINT, FONT, INK, _drawable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = 13
LEAST = 1e-4  # nats: below, a logarithmic scale would show nothing else
FLAT = 4.0  # times as wide as high, or as high as wide: from there on distances have two scales
STYLES = ("-", "--", ":", "-.")


def render(found: Mapping[str, Any]) -> bytes:
    """Two panels of filled contours; equal values give equal bytes with one matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Neither pyplot nor savefig: both obey settings of the user that would change the picture.
    figure = Figure(figsize=(12.6, 6), dpi=DPI, facecolor="white", layout="none")
    canvas = FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.055, right=0.95, top=0.82, bottom=0.12, wspace=0.16)
    panels = figure.subplots(1, 2)
    split = found["data"]["split"]
    ceiling = found["ceiling"]
    _panel(panels[0], found, "loss", f"{split} loss, nats (up to {ceiling:.2f})", loss_levels(found))
    _panel(panels[1], found, "accuracy", f"{split} accuracy, 0–1", accuracy_levels(found))
    handles, labels = panels[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, frameon=False, prop={"family": FONT, "size": 9}, labelcolor=INK, loc="lower left",
        ncols=4, bbox_to_anchor=(0.05, 0.005), handlelength=2.6,
    )  # fmt: skip
    for told in legend.get_texts():
        told.set_parse_math(False)
    files = " and ".join(str(model["file"]).rpartition("/")[2] for model in found["inputs"])
    words: dict[str, Any] = {"fontfamily": FONT, "parse_math": False, "x": 0.055}
    heading = _drawable(f"The plane through {files}", 78)
    figure.text(y=0.94, s=heading, fontsize=13, fontweight="bold", color=INK, **words)
    figure.text(y=0.895, s=_drawable(said(found), 150), fontsize=9.5, color=FAINT, **words)
    file = io.BytesIO()
    canvas.print_png(file, metadata={"Software": None})
    return file.getvalue()


def said(found: Mapping[str, Any]) -> str:
    """What was measured, in a line."""
    grid = f"{len(found['x'])}×{len(found['y'])} points"
    reset = ", BatchNorm statistics measured anew at each" if found["data"]["reset"] else ""
    axes = "distances between weights" + ("" if _alike(found) else ", each axis on a scale of its own")
    return f"{grid}, {found['data']['samples']:,} samples of {found['data']['name']}{reset}; {axes}"


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
    bar = panel.figure.colorbar(filled, ax=panel, fraction=0.045, pad=0.02)
    bar.set_ticks(levels[::2], labels=[f"{level:.3g}" for level in levels[::2]])
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
    low, high = found["y"][0], found["y"][-1]
    for model in found["points"]:
        x, y = model["x"], model["y"]
        if not (found["x"][0] <= x <= found["x"][-1] and low <= y <= high):
            continue
        panel.plot([x], [y], marker="o", markersize=7, color="white", markeredgecolor=INK, zorder=4)
        panel.annotate(
            _drawable(model["name"], 20), (x, y), xytext=(0, 9), textcoords="offset points", ha="center",
            fontsize=11, fontweight="bold", color=INK, path_effects=halo, zorder=5, fontfamily=FONT,
            parse_math=False,
        )  # fmt: skip
