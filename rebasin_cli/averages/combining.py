"""The tensors of a plain average, each made when it is asked for: averaged, copied, or put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..checkpoints.tensors import LazyTensors, blocks, chunks, plan_of, rows
from .mean import mean_of
from .mixing import JOINS, checked
from .parts import Parts

Tensors = Mapping[str, Tensor]


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
    extra, averaged, heads_of = parts.extra or {}, frozenset(parts.averaged), frozenset(parts.heads)
    turning = None
    if interpolation != "linear":
        beside = set(plans[0]) - averaged
        turning = JOINS[interpolation](*models, weights[1], keep=beside, straight={*parts.statistics})
    shapes, dtypes = {}, {}
    for name in dict.fromkeys(name for plan in (*plans, source_plan) for name in plan):
        if name in averaged or name in heads_of:
            own, shape = plans[0][name]
            if name in heads_of:
                shape = (_classes([plan[name][1][0] for plan in plans], heads), *shape[1:])
        elif name in parts.copied:
            own, shape = source_plan[name]
        elif name in extra:
            own, shape = plans[extra[name]][name]
        else:
            continue
        shapes[name], dtypes[name] = shape, dtype if dtype and own.is_floating_point else own

    def made(name: str, start: int | None, stop: int | None) -> Tensor:
        def take(model: Tensors) -> Tensor:
            return model[name] if start is None else rows(model, name, start, stop)

        if name in parts.copied:
            return take(source)
        if name in extra:
            return take(models[extra[name]])
        if name in heads_of:
            whole = joined_head([model[name] for model in models], weights, heads, dtypes[name])
            return whole[start:stop]
        if turning is not None:
            return turning[name][start:stop] if start is not None else turning[name]
        return mean_of([take(model) for model in models], weights, dtypes[name])

    return LazyTensors(shapes, dtypes, lambda name: made(name, None, None), made if turning is None else None)


def _classes(sizes: Sequence[int], heads: str | None) -> int:
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


def alike(models: Sequence[Tensors], name: str) -> bool:
    """Whether all models that have this tensor have the same one, bit for bit."""
    first, *others = [model for model in models if name in model]
    return all(same(first, other, name) for other in others)


def same(one: Tensors, other: Tensors, name: str) -> bool:
    """Whether both have the same tensor, bit for bit, or neither has it. Read in blocks."""
    if name not in one or name not in other:
        return (name in one) == (name in other)
    if planned(one, name) != planned(other, name):
        return False
    both = zip(blocks(one, name), blocks(other, name), strict=True)
    pairs = ((x, y) for one, other in both for x, y in zip(chunks(one), chunks(other), strict=True))
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs)


def planned(tensors: Tensors, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
    """Dtype and shape of one tensor, without its values where the mapping knows them."""
    if hasattr(tensors, "shapes") and hasattr(tensors, "dtypes"):
        return tensors.dtypes[name], tuple(tensors.shapes[name])
    return tensors[name].dtype, tuple(tensors[name].shape)
