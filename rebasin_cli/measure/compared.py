"""What a comparison of merges found, as values: of every method, of the models, and of what joins nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ..networks.evaluation import Scores
from .cycles import Cycles
from .geometry import Geometry
from .sharpness import Sharpness
from .simplex import Points

SCHEMA = "rebasin.compare/3"
WITHOUT = ", without the first"

Curvature = dict[str, Sharpness]  # by split


@dataclass(frozen=True)
class Merged:
    """The mean of the first `models` models, and the account of the search that matched them.

    `without` is the mean of all but the reference, where that was asked for; `sharpness` is of `mean`.
    """

    models: int
    mean: Points
    match: dict[str, Any]
    without: Points | None = None
    sharpness: Curvature = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """What one method makes of the models: `merged` of the first 2, 3 … of them, the rest with all.

    `midpoints` are those of all pairs, `points` drawn from the simplex.
    """

    name: str
    merged: tuple[Merged, ...]
    midpoints: tuple[Points, ...]
    points: tuple[Points, ...]
    geometry: Geometry


@dataclass(frozen=True)
class Comparison:
    """Everything that `rebasin compare` found. `null` is the geometry of points that nothing joins.

    `shuffled` is that of the models with their units in random orders. `cycles` are of weight matching pair
    by pair, None for two models. Losses in nats, accuracies 0–1. `times` are seconds of matching, by
    method, and in total: all that differs between two identical runs.
    """

    rebasin: str
    command: str
    seed: int
    inputs: tuple[dict[str, Any], ...]
    spec: dict[str, Any]
    data: dict[str, Any]
    proof: dict[str, Any]
    repair: str
    endpoints: tuple[dict[str, Scores], ...]
    methods: tuple[Method, ...]
    given: Geometry
    null: Geometry
    shuffled: Geometry
    cycles: Cycles | None
    endpoint_sharpness: tuple[Curvature, ...] = ()
    notes: tuple[str, ...] = ()
    times: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def match(self) -> dict[str, Any]:
        """What a barrier's report says of its one search, of all methods."""
        return {"method": ", ".join(method.name for method in self.methods)}

    def means(self) -> list[tuple[str, list[Points]]]:
        """By the names of methods, the mean of the first 2, 3 … models; without the reference, too."""
        found = []
        for method in self.methods:
            found.append((method.name, [merged.mean for merged in method.merged]))
            without = [merged.without for merged in method.merged if merged.without]
            if len(without) == len(method.merged):
                found.append((f"{method.name}{WITHOUT}", without))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the schema first."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}
