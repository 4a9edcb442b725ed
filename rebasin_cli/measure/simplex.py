"""Loss and metrics where several models are mixed: at their mean, between pairs, anywhere in the simplex.

What is measured at a point is the caller's: `measure(models, weights)` gives the scores on every split at
Σ w_i θ_i of these models.

Ito, Yamada, Kumagai 2025 (STE-MM), sections 4 and 5.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from ..networks.evaluation import Scores
from ..runtime.seeds import generator

Scored = Mapping[str, Scores]  # by split
Measure = Callable[[Sequence[Any], Sequence[float]], Scored]


@dataclass(frozen=True)
class Point:
    """Loss and metrics, by name, at one place, on one split; how far that is from the models mixed.

    `ends_loss` and `ends_metrics` are the means of the models with the weights of the point, and `gap` is
    `loss` − `ends_loss`: the loss above the chord, 0 or less where mixing costs nothing.
    """

    weights: tuple[float, ...]
    loss: float
    metrics: dict[str, float]
    ends_loss: float
    ends_metrics: dict[str, float]
    gap: float

    def plain(self) -> dict[str, Any]:
        """For JSON: the metrics beside the loss, under their names."""
        ends = {f"ends_{key}": value for key, value in self.ends_metrics.items()}
        return {
            "weights": self.weights,
            "loss": self.loss,
            **self.metrics,
            "ends_loss": self.ends_loss,
            **ends,
            "gap": self.gap,
        }


Points = dict[str, Point]  # by split


def at(measure: Measure, models: Sequence[Any], ends: Sequence[Scored], weights: Sequence[float]) -> Points:
    """One point of the simplex; `ends` are the models' own scores. Models of no weight are not mixed in."""
    some = [k for k, weight in enumerate(weights) if weight]
    found, points = measure([models[k] for k in some], [weights[k] for k in some]), {}
    for split, scores in found.items():
        loss = sum(weights[k] * ends[k][split].loss for k in some)
        known = {k: ends[k][split].by_name(scores.figures) for k in some}
        metrics = {key: sum(weights[k] * known[k][key] for k in some) for key in scores.metrics}
        points[split] = Point(
            tuple(weights), scores.loss, dict(scores.metrics), loss, metrics, scores.loss - loss
        )
    return points


def mean(measure: Measure, models: Sequence[Any], ends: Sequence[Scored]) -> Points:
    """Their mean: the model that a merge would write."""
    return at(measure, models, ends, [1 / len(models)] * len(models))


def without_first(measure: Measure, models: Sequence[Any], ends: Sequence[Scored]) -> Points:
    """The mean of all but the first; of two models, the second."""
    return at(measure, models, ends, [0.0] + [1 / (len(models) - 1)] * (len(models) - 1))


def midpoints(measure: Measure, models: Sequence[Any], ends: Sequence[Scored]) -> list[Points]:
    """The middle between every two models."""
    count = len(models)
    return [
        at(measure, models, ends, [0.5 * (k in pair) for k in range(count)])
        for pair in combinations(range(count), 2)
    ]


def anywhere(
    measure: Measure, models: Sequence[Any], ends: Sequence[Scored], count: int, *, seed: int = 0
) -> list[Points]:
    """`count` points drawn uniformly from the simplex: weights of Dirichlet(1, …, 1)."""
    drawn = uniform_weights(len(models), count, seed=seed)
    return [at(measure, models, ends, weights) for weights in drawn]


def uniform_weights(models: int, count: int, *, seed: int = 0) -> list[list[float]]:
    """Exponential variables over their sum are uniform on the simplex; `count` × `models`."""
    rng = generator(seed, "points of the simplex")
    drawn = -torch.log1p(-torch.rand(count, models, generator=rng, dtype=torch.float64))
    return (drawn / drawn.sum(dim=1, keepdim=True)).tolist()


@dataclass(frozen=True)
class Spread:
    """Of several figures: their mean, standard deviation (0 for one), least and largest."""

    mean: float
    deviation: float
    least: float
    largest: float
    count: int


def spread(values: Sequence[float]) -> Spread | None:
    """None where there are none."""
    if not values:
        return None
    known = all(map(math.isfinite, values))
    deviation = statistics.stdev(values) if known and len(values) > 1 else math.nan if not known else 0.0
    return Spread(statistics.fmean(values), deviation, min(values), max(values), len(values))
