"""What is drawn at random replaced by its mean: it tells units apart for one step only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ..graph.float64 import Uncompiled

DRAWN = {"rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0}  # operations, and their mean
DRAWN |= {"uniform_": 0.5, "normal_": 0.0, "bernoulli_": 0.5, "bernoulli": 0.5}


class Means(Uncompiled):
    """While it lasts, numbers that are drawn are their mean; those of the operations `only`."""

    def __init__(self, only: Collection[str] = DRAWN.keys()) -> None:
        super().__init__()
        self._only = only

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result, name = func(*args, **(kwargs or {})), func._opname
        if name in self._only and isinstance(result, Tensor) and result.is_floating_point():
            mean: Any = DRAWN[name]
            if name == "uniform_" and len(args) > 2:
                mean = (args[1] + args[2]) / 2
            elif name in ("normal_", "bernoulli_", "bernoulli") and len(args) > 1:
                mean = args[1]
            elif name == "bernoulli":
                mean = args[0]
            result.copy_(mean if isinstance(mean, Tensor) else torch.full_like(result, mean))
        return result
