"""The tensors of a plain average, each made when it is asked for: averaged, copied, or put together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from ..checkpoints.tensors import LazyTensors, plan_of
from ..checkpoints.validation import finite, validate
from ..errors import SpecError, UsageError
from ..types import Tensors
from .kinship import alike
from .means import interpolate, line, mean_of
from .parts import Parts
from .weights import checked


def combined(
    models: Sequence[Tensors],
    parts: Parts,
    weights: Sequence[float] | None = None,
    *,
    source: Tensors | None = None,
    heads: str | None = None,
    interpolation: str = "linear",
    straight: Collection[str] | None = None,
    dtype: torch.dtype | None = None,
    called: Sequence[str] | None = None,
    step: Callable[[str, int, int | None, str], None] | None = None,
) -> LazyTensors:
    """The model that `parts` says, with the names, order and dtypes of the first model.

    The one way to a merged model: of models as they are or aligned, in memory or tensor by tensor to a file.

    `source` is whose tensors are copied (the first model's), `dtype` that of all floating-point tensors
    (their own): sums are rounded to it once. Heads: "average" is the mean of the rows that both have, and the
    larger one's own beyond these; "concat" is the first model's rows, then the second's. What goes `straight`
    on an arc are running statistics, unless it is said.

    Making one that is averaged and is not finite raises CheckpointError where one of the models has no number
    there, which is `called` by its name, UsageError where the sum is beyond the range of the dtype. `step` is
    told of each one.
    """
    weights, source = checked(weights, len(models)), models[0] if source is None else source
    plans, source_plan = [plan_of(model) for model in models], plan_of(source)
    extra, averaged, joined = parts.extra or {}, {*parts.averaged}, {*parts.heads}
    turning = None
    if interpolation != "linear":
        beside = set(plans[0]) - averaged
        straight = {*parts.statistics} if straight is None else straight
        a, b = models
        turning = interpolate(a, b, weights[1], interpolation=interpolation, keep=beside, straight=straight)
    together = parts.products.members
    products = parts.products.joined(
        models, weights, (), lambda views, keep: line(views, weights, keep), dtype
    )
    made: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name in dict.fromkeys(name for plan in (*plans, source_plan) for name in plan):
        if name in averaged or name in joined:
            own, shape = plans[0][name]
            if name in joined:
                shape = (_classes([plan[name][1][0] for plan in plans], heads), *shape[1:])
        elif name in parts.copied:
            own, shape = source_plan[name]
        elif name in extra:
            own, shape = plans[extra[name]][name]
        else:
            continue
        made[name] = dtype if dtype and own.is_floating_point else own, shape

    def make(name: str, take: Callable[[Tensors], Tensor]) -> Tensor:
        if name in parts.copied:
            return take(source)
        if name in extra:
            return take(models[extra[name]])
        if name in joined:
            return take({name: joined_head([m[name] for m in models], weights, heads, made[name][0])})
        if turning is not None:
            return take(turning)
        if name in together:
            return take(products)
        return mean_of([take(model) for model in models], weights, made[name][0])

    whole = LazyTensors.of(made, make)
    names = called or [f"model {k}" for k in range(1, len(models) + 1)]
    return finite_only(whole, averaged | joined, models, names, step)


def _classes(sizes: Sequence[int], heads: str | None) -> int:
    assert heads is not None  # else no head is joined
    return {"keep-a": sizes[0], "keep-b": sizes[-1], "average": max(sizes), "concat": sum(sizes)}[heads]


def joined_head(
    both: Sequence[Tensor], weights: Sequence[float], heads: str | None, dtype: torch.dtype
) -> Tensor:
    """One head of two, as `combined` says."""
    if heads in ("keep-a", "keep-b"):
        return both[0 if heads == "keep-a" else -1]
    if heads == "concat":
        return torch.cat([head.to(dtype) for head in both])
    common = min(map(len, both))
    mean = mean_of([head[:common] for head in both], weights, dtype)
    return torch.cat([mean, max(both, key=len)[common:].to(dtype)])


def finite_only(
    tensors: LazyTensors,
    averaged: Collection[str],
    models: Sequence[Tensors],
    names: Sequence[str],
    step: Callable[[str, int, int | None, str], None] | None,
) -> LazyTensors:
    """The same tensors, looked through as `combined` says. The models are read again only for an error."""
    begun: set[str] = set()

    def look(name: str, take: Callable[[Tensors], Tensor]) -> Tensor:
        made = take(tensors)
        if step is not None and name not in begun:
            begun.add(name)
            step("averaging", len(begun), len(tensors), name)
        if name in averaged and not finite(made):
            for model, called in zip(models, names, strict=True):
                if name in model:
                    validate(_only(model, name), name=called)
            if not all(finite(model[name]) for model in models if name in model):  # masks, then
                if not alike(models, name):
                    raise SpecError(f"{name} is a mask, of 0 and −∞, and not the same in all models")
                return take(models[0]).to(made.dtype)
            raise UsageError(
                f"{name}: the average is beyond the range of {made.dtype}",
                hint="Use --out-dtype bfloat16 or float32.",
            )
        return made

    return LazyTensors.of(plan_of(tensors), look)


def _only(model: Tensors, name: str) -> LazyTensors:
    return LazyTensors.of({name: plan_of(model)[name]}, lambda name, take: take(model))
