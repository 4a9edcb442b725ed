"""Loss and accuracy over a plane through three models, with the paths in it, as a document."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..runtime.text import many
from . import format as f
from .document import (
    Column,
    Command,
    Document,
    Facts,
    Figure,
    Kind,
    Line,
    Notes,
    On,
    Panel,
    Row,
    Surface,
    Table,
)
from .facts import took
from .pictures import PALETTE, alike

LEVELS = 13
LOOKS: tuple[dict[str, Any], ...] = ({}, {"dashed": True}, {"dotted": True}, {"heavy": True})
LEAST = 1e-4  # nats: below, a logarithmic scale would show nothing else
ALT = "Filled contours of loss and accuracy over the plane, with the models and the paths between them"


def document(found: Mapping[str, Any]) -> Document:
    """From the values that `rebasin plane` prints as JSON."""
    split, files = found["data"]["split"], [str(model["file"]) for model in found["inputs"]]
    labels = {
        "loss": f"{split} loss, nats (up to {found['ceiling']:.2f})",
        "accuracy": f"{split} accuracy, 0–1",
    }
    surfaces = {
        "loss": Surface(found["x"], found["y"], found["loss"], loss_levels(found), False),
        "accuracy": Surface(found["x"], found["y"], found["accuracy"], accuracy_levels(found), True),
    }
    lines = _lines(found)
    panels = [Panel(label, "", "", lines, surface=surfaces[what]) for what, label in labels.items()]
    rows = [
        Row(
            [
                one["name"],
                *(f"{one[axis]:.4g}" for axis in "xy"),
                f.fixed(one["loss"]),
                f.fixed(one["accuracy"]),
            ]
        )
        for one in [*found["points"], *_extremes(found)]
    ]
    names = ("x", "y", f"{split} loss", f"{split} accuracy")
    away = [
        f"{one['name']}: its points are {one['away']:.3g} from the plane at most" for one in found["curves"]
    ]
    return Document(
        f"The plane through {' and '.join(files)}",
        [said(found, surfaces["loss"])],
        [
            Figure("Loss and accuracy", panels, ALT, legend=[line for line in lines if line.label]),
            Table(
                "Models, and the extremes of the grid",
                [Column("model", Kind.TEXT), *map(Column, names)],
                rows,
            ),
            Notes("Curves", away),
            Command("Measure it again", found["command"]),
            Facts("", [("written", str(path)) for path in found.get("written") or ()], on=On.TERMINAL),
            Facts("", [("took", took(found["times"]))] if found["times"] else [], on=On.WRITTEN),
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


def accuracy_levels(found: Mapping[str, Any]) -> list[float]:
    values = [v for row in found["accuracy"] for v in row if math.isfinite(v)] or [0.0, 1.0]
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


def _extremes(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points of the grid with the lowest and with the highest loss."""
    every = [
        {"x": x, "y": y, "loss": found["loss"][row][column], "accuracy": found["accuracy"][row][column]}
        for row, y in enumerate(found["y"])
        for column, x in enumerate(found["x"])
    ]
    low, high = (pick(every, key=lambda one: one["loss"]) for pick in (min, max))
    return [{"name": "lowest"} | low, {"name": "highest"} | high]
