"""Whether models are copies of one another that were trained on: a look at a few rows of a few matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from torch import Tensor

from ..checkpoints.tensors import plan_of, rows

Tensors = Mapping[str, Tensor]

NEAR = 0.5  # a cosine that matrices of independent seeds do not have
MATRICES, VALUES = 12, 1 << 18  # that are looked at, and of each


def cosine(models: Sequence[Tensors]) -> float | None:
    """The median cosine of the models' matrices with the first model's, of the farthest model.

    Near 1 for fine-tuned copies of one model, near 0 for models of independent seeds: matrices are drawn,
    where norms and biases begin alike. None where there is no matrix. Names and shapes are the same in all;
    only the first rows of those with the most values are read.
    """
    plan = plan_of(models[0])
    sizes = {n: math.prod(shape) for n, (dtype, shape) in plan.items() if dtype.is_floating_point}
    matrices = [name for name, size in sizes.items() if len(plan[name][1]) > 1 and size > 1]
    chosen = sorted(matrices, key=lambda name: -sizes[name])[:MATRICES]
    found = [
        [c for name in chosen if (c := _cosine(models[0], other, name, plan[name][1])) is not None]
        for other in models[1:]
    ]
    return min((median(each) for each in found), default=None) if all(found) else None


def _cosine(one: Tensors, other: Tensors, name: str, shape: tuple[int, ...]) -> float | None:
    count = max(1, VALUES // max(1, math.prod(shape[1:])))
    x, y = (rows(model, name, 0, min(count, shape[0])).double().flatten() for model in (one, other))
    both = (x.norm() * y.norm()).item()
    return (x @ y).item() / both if both > 0 and math.isfinite(both) else None
