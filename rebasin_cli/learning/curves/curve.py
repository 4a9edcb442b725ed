"""Curves through weight space: Bezier curves, and chains of straight lines with bends.

A curve goes from θ_0 = A to θ_k = πB, and its control points θ_1 … θ_{k−1} are what is trained. At t it is
Σ_i w_i(t) θ_i, with shares w_i(t) that are not negative and add up to 1:

    bezier   w_i(t) = C(k, i) (1−t)^(k−i) t^i
    chain    the straight line between θ_i and θ_{i+1} for i/k ≤ t ≤ (i+1)/k

With control points on the straight line from A to πB at i/k, both are that line, at the same pace.

Garipov et al. 2018, Loss surfaces, mode connectivity and fast ensembling of DNNs, section 3.3; Tatro et al.
2020, Optimizing mode connectivity via neuron alignment, equation 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...averages.kinship import alike
from ...averages.means import interpolate, mean_of
from ...averages.together import products_of
from ...checkpoints.tensors import LazyTensors, plan_of
from ...errors import SpecError, unknown
from ...types import Tensors


def _bezier(t: float, last: int) -> list[float]:
    return [math.comb(last, i) * (1 - t) ** (last - i) * t**i for i in range(last + 1)]


def _chain(t: float, last: int) -> list[float]:
    return [max(0.0, 1 - abs(t * last - i)) for i in range(last + 1)]


def _bezier_slopes(t: float, last: int) -> list[float]:
    lower = [0.0, *_bezier(t, last - 1), 0.0]
    return [last * (lower[i] - lower[i + 1]) for i in range(last + 1)]


def _chain_slopes(t: float, last: int) -> list[float]:
    line = min(int(t * last), last - 1)
    return [float(last) * ((i == line + 1) - (i == line)) for i in range(last + 1)]


KINDS: dict[str, tuple[Callable[..., list[float]], Callable[..., list[float]]]] = {
    "bezier": (_bezier, _bezier_slopes),
    "chain": (_chain, _chain_slopes),
}


def shares(kind: str, t: float, points: int) -> list[float]:
    """The share of each of `points` points, both ends among them, at t in 0–1.

    >>> shares("bezier", 0.5, 3), shares("chain", 0.25, 3)
    ([0.25, 0.5, 0.25], [0.5, 0.5, 0.0])
    """
    return KINDS[kind][0](t, points - 1)


def slopes(kind: str, t: float, points: int) -> list[float]:
    """d/dt of every share; they add up to 0. At a bend, those of the line behind it."""
    return KINDS[kind][1](t, points - 1)


def check_kind(kind: str) -> None:
    """Raise UsageError for a kind of curve that there is not."""
    if kind not in KINDS:
        raise unknown("kind of curve", kind, KINDS)


def check_families(a: Tensors, b: Tensors, names: Collection[str], keep: Collection[str] = ()) -> None:
    """Raise SpecError for tensors that mean something only together, of which a curve bends some.

    `names` are those of the parameters, which its control points hold. Vectors beside a spectral norm, or
    masks, belong to one weight each; and there is none for the weights of a curve.
    """
    for family in products_of([a, b], keep=keep).families:
        beside = [name for name in family.members.values() if name not in names]
        if 0 < len(beside) < len(family.members) and not all(alike([a, b], name) for name in beside):
            raise SpecError(
                f"{family.stem} ({family.kind.name}) has no curve: {', '.join(beside)} are no parameters",
                problems=[f"{family.stem} is {family.kind.means}"],
                hint=family.kind.next,
            )


@dataclass(frozen=True)
class Curve:
    """A curve from `a` to `b`, a model that is aligned to `a`, through `controls`.

    Control points hold the network's parameters; of all else (running statistics) the curve has the straight
    line, of integers and of what is in `keep` what `a` has.
    """

    kind: str
    a: Tensors
    b: Tensors
    controls: Sequence[Tensors]
    keep: Collection[str] = ()

    def __post_init__(self) -> None:
        check_families(self.a, self.b, self.controls[0], self.keep)

    @property
    def points(self) -> int:
        return len(self.controls) + 2

    def at(self, t: float) -> Tensors:
        """The model at t in 0–1, tensor by tensor as asked for; exactly `a` at 0 and `b` at 1."""
        line, weights = interpolate(self.a, self.b, t, keep=self.keep), shares(self.kind, t, self.points)
        if t in (0.0, 1.0):
            return line
        plan = plan_of(self.a)

        def get(name: str) -> Tensor:
            if name not in self.controls[0]:
                return line[name]
            parts = [self.a[name], *(control[name] for control in self.controls), self.b[name]]
            return mean_of(parts, weights, plan[name][0])

        return LazyTensors({n: s for n, (_, s) in plan.items()}, {n: d for n, (d, _) in plan.items()}, get)

    def speed(self, t: float) -> float:
        """‖dr/dt‖ over all parameters: how fast the curve moves at t."""
        weights, total = slopes(self.kind, t, self.points), 0.0
        for name in self.controls[0]:
            parts = [self.a[name], *(control[name] for control in self.controls), self.b[name]]
            slope = sum(
                (weight * part.double() for weight, part in zip(weights, parts, strict=True)),
                torch.zeros((), dtype=torch.float64),
            )
            total += float(slope.square().sum())
        return math.sqrt(total)


def along(values: Sequence[float], speeds: Sequence[float]) -> dict[str, Any]:
    """Figures of values at equal steps of t, both ends included: means over t and over length, the extremes.

    `interior` are those between the ends: on a good curve the worst point is an end. The mean over length is
    ∫ L‖r′‖ dt / ∫ ‖r′‖ dt (Tatro et al. 2020, equation 1), by the trapezoid rule; with the one over t it says
    whether the curve hurries where it is bad.
    """
    inner = values[1:-1] or values
    by_length = [value * speed for value, speed in zip(values, speeds, strict=True)]
    length = _trapezoid(speeds)
    return {
        "mean": sum(values) / len(values),
        "mean_over_length": _trapezoid(by_length) / length if length else values[0],
        "lowest": min(values),
        "highest": max(values),
        "interior": {"lowest": min(inner), "highest": max(inner)},
    }


def _trapezoid(values: Sequence[float]) -> float:
    return sum((left + right) / 2 for left, right in zip(values, values[1:], strict=False))
