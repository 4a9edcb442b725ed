"""The plane through three models: where models lie in it, and loss and metrics over a grid of it.

With u = θ₂ − θ₁ and v what of θ₃ − θ₁ is at a right angle to u, the model at (x, y) is
θ₁ + x u/‖u‖ + y v/‖v‖: distances in the plane are distances in weight space. Only parameters count; running
statistics are estimated anew at every point.

Garipov et al. 2018, appendix A.2; Tatro et al. 2020, figures 3, 5 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .. import networks
from ..averages.means import average
from ..checkpoints.tensors import plan_of
from ..errors import UsageError
from ..networks.evaluation import Scores, evaluate
from ..repair.batchnorm import reset
from ..spec.spec import FittedSpec
from ..types import ACCURACY, Batches, Tensors
from .paths import Measure

Place = tuple[float, float]

FLAT = 1e-9  # of the distance of the first two: a third one nearer to their line than this spans no plane
MARGIN = 0.2  # of the box around the three models, on each side


@dataclass(frozen=True)
class Plane:
    """The plane through `models`, by the distances that place the third: `along` u and `height` above it.

    `names` are the parameters, `keep` tensors that are the first model's everywhere.
    """

    models: tuple[Tensors, Tensors, Tensors]
    names: tuple[str, ...]
    keep: frozenset[str]
    length: float
    along: float
    height: float

    @classmethod
    def through(cls, models: Sequence[Tensors], fitted: FittedSpec) -> Plane:
        """Raises UsageError for three models on one line."""
        without = {*fitted.statistics, *fitted.ignored}
        first, second, third = models
        plan = plan_of(first)
        names = tuple(n for n, (dtype, _) in plan.items() if dtype.is_floating_point and n not in without)
        flat = cls((first, second, third), names, frozenset(fitted.ignored), 0.0, 0.0, 0.0)
        length = math.sqrt(flat._sum(lambda u, w: u.square()))
        along = flat._sum(lambda u, w: u * w) / length if length else 0.0
        # not √(‖w‖² − along²): of models nearly on a line that would be rounding
        height = math.sqrt(flat._sum(lambda u, w: (w - along / length * u).square())) if length else 0.0
        if not (math.isfinite(length) and height > FLAT * length):
            raise UsageError(
                "these three models lie on one line, and span no plane",
                hint="An alignment that moves nothing leaves B where it is; name a third model, or a curve",
            )
        return cls((first, second, third), names, flat.keep, length, along, height)

    def _sum(self, what: Callable[..., torch.Tensor]) -> float:
        """Of a function of θ₂ − θ₁ and θ₃ − θ₁, over all parameters, in float64."""
        total, (first, second, third) = 0.0, self.models
        for name in self.names:
            start = first[name].double()
            total += float(what(second[name].double() - start, third[name].double() - start).sum())
        return total

    @property
    def places(self) -> tuple[Place, Place, Place]:
        """Where the three models are."""
        return (0.0, 0.0), (self.length, 0.0), (self.along, self.height)

    def at(self, x: float, y: float) -> Tensors:
        """The model at a place, tensor by tensor as asked for."""
        third = y / self.height
        second = (x - third * self.along) / self.length
        return average(self.models, [1 - second - third, second, third], keep=self.keep)

    def place(self, model: Tensors) -> tuple[Place, float]:
        """Where a model's nearest point of the plane is, and how far the model is from it.

        Tensors that it lacks are the first model's.
        """
        first, second, third = self.models
        to_second = to_third = off = 0.0
        for turn in range(2):
            x = to_second / self.length
            y = (to_third - self.along * x) / self.height
            for name in self.names:
                if name not in model:
                    continue
                start = first[name].double()
                d, u, w = (its[name].double() - start for its in (model, second, third))
                if turn == 0:
                    to_second, to_third = to_second + float((d * u).sum()), to_third + float((d * w).sum())
                else:
                    share = y / self.height
                    away = d - share * w - (x - share * self.along) / self.length * u
                    off += float(away.square().sum())
        return (x, y), math.sqrt(off)

    def axes(self, points: int) -> tuple[list[float], list[float]]:
        """So many equal steps in both directions, around all three models."""
        found = []
        for values in zip(*self.places, strict=True):
            low, high = min(values), max(values)
            margin = MARGIN * (high - low)
            step = (high - low + 2 * margin) / (points - 1)
            found.append([low - margin + k * step for k in range(points)])
        return found[0], found[1]


def measure(
    plane: Plane,
    network: nn.Module,
    batches: Batches,
    axes: tuple[Sequence[float], Sequence[float]],
    *,
    reset_batches: Batches | None = None,
    scores: Measure = evaluate,
    device: str = "cpu",
    known: torch.Tensor | None = None,
    names: Sequence[str] = ("loss", ACCURACY.key),
    reached: Callable[[torch.Tensor, int], None] = lambda figures, done: None,
) -> torch.Tensor:
    """Loss and metrics (figures, y, x), float64, over the grid, row by row; the network is overwritten.

    `names` are those of the figures, in their order. With `reset_batches`, running statistics are estimated
    on them at every point. Points of `known` that are numbers are not measured again. `reached` gets what is
    known after every point, and how many that are. Raises NetworkError where a point has other figures.
    """
    xs, ys = axes
    figures = torch.full((len(names), len(ys), len(xs)), math.nan, dtype=torch.float64)
    if known is not None:
        figures.copy_(known)
    done = int((~figures[0].isnan()).sum())
    for row, y in enumerate(ys):
        for column, x in enumerate(xs):
            if not math.isnan(figures[0, row, column]):
                continue
            found = score(plane.at(x, y), network, batches, reset_batches, scores=scores, device=device)
            figures[:, row, column] = torch.tensor([*found.by_name(names).values()], dtype=torch.float64)
            done += 1
            reached(figures, done)
    return figures


def score(
    model: Tensors,
    network: nn.Module,
    batches: Batches,
    reset_batches: Batches | None = None,
    *,
    scores: Measure = evaluate,
    device: str = "cpu",
) -> Scores:
    """One model's figures, its running statistics estimated anew on `reset_batches`, where there are some."""
    networks.load(network, model)
    if reset_batches is not None:
        reset(network, reset_batches, device=device)
    return scores(network, batches)
