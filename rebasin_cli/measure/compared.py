"""What a comparison of merges found, as values: of every method, of the models, and of what joins nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from ..networks.evaluation import Scores
from ..reports import Measured
from ..symmetry import permutation
from ..types import Permutations, Quantity
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
class Comparison(Measured):
    """Everything that `rebasin compare` found. `null` is the geometry of points that nothing joins.

    `shuffled` is that of the models with their units in random orders. `cycles` are of weight matching pair
    by pair, None for two models. `quantities` say what is measured. `times` are seconds of matching,
    by method, and in total: all that differs between two identical runs.
    """

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
    def quantities(self) -> tuple[Quantity, ...]:
        """What is measured: the loss first, then every metric."""
        return next(iter(self.endpoints[0].values())).quantities

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
        found = dataclasses.asdict(self)
        loss, *metrics = map(dataclasses.asdict, self.quantities)
        ends = [{split: _scores(one) for split, one in end.items()} for end in found["endpoints"]]
        methods = [_method(one, plain) for one, plain in zip(self.methods, found["methods"], strict=True)]
        told = {"loss": loss, "metrics": metrics, "endpoints": ends, "methods": methods}
        return {"schema": SCHEMA, **found, **told}


@dataclass(frozen=True)
class Cycles:
    """The share of units that do not come back, 0–1: of every word, of all units, and of single triplets.

    `by_triplet` holds the overall share of (1,2,3), (1,2,4) … in order.
    """

    by_word: dict[str, float]
    overall: float
    by_triplet: tuple[float, ...]


def inconsistency(pairs: Mapping[tuple[int, int], Permutations]) -> Cycles | None:
    """`pairs` has for every i < j the permutations that bring model j into the order of model i.

    None for fewer than three models. The way back is the inverse, so the direction of a cycle is all one.
    """
    models = sorted({model for pair in pairs for model in pair})
    triplets = list(combinations(models, 3))
    if not triplets:
        return None
    words = {word: len(perm) for word, perm in next(iter(pairs.values())).items()}
    lost = {triplet: _lost(pairs, *triplet) for triplet in triplets}
    units = sum(words.values())
    return Cycles(
        {
            word: sum(of[word] for of in lost.values()) / (size * len(triplets))
            for word, size in words.items()
        },
        sum(sum(of.values()) for of in lost.values()) / (units * len(triplets)),
        tuple(sum(of.values()) / units for of in lost.values()),
    )


def _lost(pairs: Mapping[tuple[int, int], Permutations], i: int, j: int, k: int) -> dict[str, int]:
    """How many units of each word end elsewhere: k brought to j and on to i, against k brought to i."""
    round_about = permutation.compose(pairs[j, k], pairs[i, j])
    return {word: int(torch.count_nonzero(perm != pairs[i, k][word])) for word, perm in round_about.items()}


def _scores(scores: dict[str, Any]) -> dict[str, Any]:
    """With the metrics beside the loss, under their names."""
    hidden = ("metrics", "sizes", "quantities", "loss", *["ece"] * (not scores["bins"]))
    kept = {key: value for key, value in scores.items() if key not in hidden}
    return {"loss": scores["loss"], **scores["metrics"], **kept}


def _method(method: Method, plain: dict[str, Any]) -> dict[str, Any]:
    merged = [
        each | {"mean": _points(one.mean), "without": None if one.without is None else _points(one.without)}
        for one, each in zip(method.merged, plain["merged"], strict=True)
    ]
    midpoints, points = (list(map(_points, each)) for each in (method.midpoints, method.points))
    return plain | {"merged": merged, "midpoints": midpoints, "points": points}


def _points(points: Points) -> dict[str, Any]:
    return {split: point.plain() for split, point in points.items()}
