"""The tensors of a plain average, each made when it is asked for: averaged, copied, or put together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checkpoints.tensors import LazyTensors, plan_of, rows
from ..types import Tensors
from .mean import mean_of
from .mixing import JOINS, line
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
    dtype: torch.dtype | None = None,
) -> LazyTensors:
    """The model that `parts` says, with the names, order and dtypes of the first model.

    `source` is whose tensors are copied (the first model's), `dtype` that of all floating-point tensors
    (their own): sums are rounded to it once. Heads: "average" is the mean of the rows that both have, and the
    larger one's own beyond these; "concat" is the first model's rows, then the second's.
    """
    weights, source = checked(weights, len(models)), models[0] if source is None else source
    plans, source_plan = [plan_of(model) for model in models], plan_of(source)
    extra, averaged, joined = parts.extra or {}, {*parts.averaged}, {*parts.heads}
    turning = None
    if interpolation != "linear":
        beside = set(plans[0]) - averaged
        turning = JOINS[interpolation](*models, weights[1], keep=beside, straight={*parts.statistics})
    together = parts.products.members
    products = parts.products.joined(
        models, weights, (), lambda views, keep: line(views, weights, keep), dtype
    )
    shapes, dtypes = {}, {}
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
        shapes[name], dtypes[name] = shape, dtype if dtype and own.is_floating_point else own

    def made(name: str, part: tuple[int, int] | None = None) -> Tensor:
        def take(model: Tensors) -> Tensor:
            return model[name] if part is None else rows(model, name, *part)

        if name in parts.copied:
            return take(source)
        if name in extra:
            return take(models[extra[name]])
        if name in joined:
            whole = joined_head([model[name] for model in models], weights, heads, dtypes[name])
            return whole if part is None else whole[slice(*part)]
        if name in together and turning is None:
            return take(products)
        if turning is not None:
            return turning[name] if part is None else turning[name][slice(*part)]
        return mean_of([take(model) for model in models], weights, dtypes[name])

    def made_rows(name: str, start: int, stop: int) -> Tensor:
        return made(name, (start, stop))

    return LazyTensors(shapes, dtypes, made, made_rows if turning is None else None)


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
