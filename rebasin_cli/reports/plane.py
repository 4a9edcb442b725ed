"""Loss and metrics over a plane through three models, with the paths in it, as a document."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..runtime.text import many
from ..types import Quantity
from . import format as f
from .document import (
    Column,
    Document,
    Figure,
    Kind,
    Line,
    Notes,
    Panel,
    Row,
    Surface,
    Table,
)
from .facts import ends
from .pictures import PALETTE, alike

LEVELS = 13
LOOKS: tuple[dict[str, Any], ...] = ({}, {"dashed": True}, {"dotted": True}, {"heavy": True})
LEAST = 1e-4  # below, a logarithmic scale would show nothing else


def document(found: Mapping[str, Any]) -> Document:
    """From the values that `rebasin plane` prints as JSON."""
    split, files = found["data"]["split"], [str(model["file"]) for model in found["inputs"]]
    loss, *metrics = (Quantity(**one) for one in (found["measured"]["loss"], *found["measured"]["metrics"]))
    unit = f", {loss.unit}" if loss.unit else ""
    labels = {"loss": f"{split} loss{unit} (up to {found['ceiling']:.2f})"}
    labels |= {metric.key: f"{split} {metric.titled}" for metric in metrics}
    surfaces = {"loss": Surface(found["x"], found["y"], found["loss"], loss_levels(found), False)}
    surfaces |= {
        metric.key: Surface(
            found["x"], found["y"], found[metric.key], levels(found[metric.key]), metric.larger_is_better
        )
        for metric in metrics
    }
    named = ["loss", *(metric.name for metric in metrics)]
    alt = (
        f"Filled contours of {' and '.join(named)} over the plane, with the models and the paths between them"
    )
    lines = _lines(found)
    panels = [Panel(label, "", "", lines, surface=surfaces[what]) for what, label in labels.items()]
    rows = [
        Row(
            [
                one["name"],
                *(f"{one[axis]:.4g}" for axis in "xy"),
                *(f.fixed(one[what]) for what in labels),
            ]
        )
        for one in [*found["points"], *_extremes(found, labels)]
    ]
    names = ("x", "y", *(f"{split} {name}" for name in named))
    away = [
        f"{one['name']}: its points are {one['away']:.3g} from the plane at most" for one in found["curves"]
    ]
    return Document(
        f"The plane through {' and '.join(files)}",
        [said(found, surfaces["loss"])],
        [
            Figure(f"L{' and '.join(named)[1:]}", panels, alt, legend=[line for line in lines if line.label]),
            Table(
                "Models, and the extremes of the grid",
                [Column("model", Kind.TEXT), *map(Column, names)],
                rows,
            ),
            Notes("Curves", away),
            *ends(found, found["command"]),
        ],
        name=f"The plane through {' and '.join(file.rpartition('/')[2] for file in files)}",
    )


def said(found: Mapping[str, Any], surface: Surface) -> str:
    """What was measured, in a line."""
    grid = f"{len(found['x'])}×{len(found['y'])} points"
    reset = ", BatchNorm statistics measured anew at each" if found["data"]["reset"] else ""
    axes = "distances between weights" + ("" if alike(surface) else ", each axis on a scale of its own")
    return f"{grid}, {many(found['data']['samples'], 'sample')} of {found['data']['name']}{reset}; {axes}"


def loss_levels(found: Mapping[str, Any]) -> list[float]:
    """From the lowest loss of the grid to the ceiling, in equal ratios."""
    values = [v for row in found["loss"] for v in row if math.isfinite(v)] or [1.0]
    high = max(found["ceiling"], 2 * LEAST)
    low = min(max(LEAST, min(values)), high / 2)
    return [low * (high / low) ** (k / (LEVELS - 1)) for k in range(LEVELS)]


def levels(grid: Sequence[Sequence[float]]) -> list[float]:
    """Of a metric: equal steps from the least to the largest."""
    values = [v for row in grid for v in row if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(values), max(values)
    high = high if high > low else low + 0.01
    return [low + (high - low) * k / (LEVELS - 1) for k in range(LEVELS)]


def _lines(found: Mapping[str, Any]) -> Sequence[Line]:
    """The straight lines, the curves, and the models with their names."""
    ink: dict[str, Any] = {"color": PALETTE[5]}
    lines = []
    for one, look in zip([*found["lines"], *found["curves"]], itertools.cycle(LOOKS)):  # noqa: B905 (no end)
        across, up = zip(*one["points"], strict=True)
        lines.append(Line(one["name"], across, up, marker="", **ink, **look))
    models = found["points"]
    x, y, names = ([model[key] for model in models] for key in ("x", "y", "name"))
    return [*lines, Line("", x, y, names=names, tells=names, marker="o", joined=False, hollow=True, **ink)]


def _extremes(found: Mapping[str, Any], keys: Iterable[str]) -> list[dict[str, Any]]:
    """The points of the grid with the lowest and with the highest loss."""
    every = [
        {"x": x, "y": y} | {key: found[key][row][column] for key in keys}
        for row, y in enumerate(found["y"])
        for column, x in enumerate(found["x"])
    ]
    low, high = (pick(every, key=lambda one: one["loss"]) for pick in (min, max))
    return [{"name": "lowest"} | low, {"name": "highest"} | high]
