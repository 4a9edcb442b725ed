"""Weights from several models: interpolate two, average many. Tensor by tensor, as they are asked for.

Sums are float64 whatever the stored dtype (`mean`); integer buffers and tensors that a spec ignores are the
first model's, never averaged. Names, order and dtypes are the first model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from ..checkpoints.tensors import LazyTensors, plan_of, rows
from ..errors import UsageError
from .mean import mean_of

Tensors = Mapping[str, torch.Tensor]


def average(
    models: Sequence[Tensors], weights: Sequence[float] | None = None, *, keep: Collection[str] = ()
) -> LazyTensors:
    """Σ w_k · model_k, by default their mean; weights are used as they are and must add up to 1.

    `keep` names tensors that are taken from the first model. Raises UsageError for weights that are
    not one finite number a model, or do not add up to 1.
    """
    weights = checked(weights, len(models))
    plan = plan_of(models[0])

    def mean(name: str, take: Callable[[Tensors], torch.Tensor]) -> torch.Tensor:
        first = take(models[0])
        if name in keep or not first.is_floating_point():
            return first
        return mean_of([first, *(take(model) for model in models[1:])], weights, first.dtype)

    def get(name: str) -> torch.Tensor:
        return mean(name, lambda model: model[name])

    def part(name: str, start: int, stop: int) -> torch.Tensor:
        return mean(name, lambda model: rows(model, name, start, stop))

    return LazyTensors({n: s for n, (_, s) in plan.items()}, {n: d for n, (d, _) in plan.items()}, get, part)


def checked(weights: Sequence[float] | None, models: int) -> list[float]:
    """One weight a model, None for equal ones. Raises UsageError as `average` does."""
    if not models:
        raise UsageError("there are no models to average")
    weights = [1 / models] * models if weights is None else list(weights)
    if len(weights) != models:
        raise UsageError(f"{len(weights)} weights for {models} models")
    if not all(map(math.isfinite, weights)) or abs(sum(weights) - 1) > 1e-6:
        raise UsageError(f"the weights add up to {sum(weights):g}, expected 1")
    return weights


def interpolate(a: Tensors, b: Tensors, t: float, *, keep: Collection[str] = ()) -> LazyTensors:
    """(1 − t)·a + t·b; exactly a at 0 and exactly b at 1."""
    if t in (0.0, 1.0):
        return average([a if t == 0 else b])
    return average([a, b], [1 - t, t], keep=keep)


def slerp(a: Tensors, b: Tensors, t: float, *, keep: Collection[str] = ()) -> LazyTensors:
    """Spherical interpolation: directions turn by one angle a tensor, norms change linearly.

    So norms along the way lie between the two models', where a straight line shrinks them. Tensors that
    are parallel, opposite or zero go straight; both ends are exact.

    Shoemake 1985.
    """
    linear, plan = average([a, b], [1 - t, t], keep=keep), plan_of(a)

    def get(name: str) -> torch.Tensor:
        first = a[name]
        if name in keep or not first.is_floating_point() or t == 0:
            return first
        if t == 1:
            return b[name].to(first.dtype)
        x, y = first.double(), b[name].double()
        x_norm, y_norm = x.norm(), y.norm()
        cosine = ((x * y).sum() / (x_norm * y_norm)).item() if x_norm * y_norm > 0 else 1.0
        if abs(cosine) > 1 - 1e-9:
            return linear[name]
        angle = math.acos(cosine)
        direction = (math.sin((1 - t) * angle) / x_norm) * x + (math.sin(t * angle) / y_norm) * y
        return (direction * (((1 - t) * x_norm + t * y_norm) / math.sin(angle))).to(first.dtype)

    return LazyTensors({n: s for n, (_, s) in plan.items()}, {n: d for n, (d, _) in plan.items()}, get)
