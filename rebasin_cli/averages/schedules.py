"""Weights for the checkpoints of one run, in the order of their steps: what a decay would have left of it.

Checkpoints θ_0 … θ_k, the first given and k updates Δ_i = θ_i − θ_{i−1}. A learning rate that decays would
have taken the update Δ_i with a share d_i, 1 ≥ d_1 ≥ … ≥ d_k ≥ 0, and ended at θ_0 + Σ d_i Δ_i. That is
Σ w_j θ_j with w_j = d_j − d_{j+1}, d_0 = 1 and d_{k+1} = 0. Here d_i = D(i / (k + 1)), with D as below.

Tian et al. 2025, WSM, section 3 (arXiv:2507.17634), gives these weights for any decay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from ..errors import UsageError, unknown

DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "minus-sqrt": lambda t: 1 - math.sqrt(t),
}
NAMES = ("uniform", *DECAYS)  # uniform is the plain mean, whatever the order


def weights_of(name: str, models: int) -> list[float]:
    """One weight a model, adding up to 1. Raises UsageError for an unknown name.

    >>> [round(weight, 3) for weight in weights_of("minus-sqrt", 4)]
    [0.5, 0.207, 0.159, 0.134]
    """
    if name in ("uniform", "linear"):  # equal, and exactly so: the shares of a line differ by 1/(k + 1)
        return [1 / models] * models
    if name not in DECAYS:
        raise unknown("schedule of weights", name, NAMES)
    shares = [1.0, *(DECAYS[name](k / models) for k in range(1, models)), 0.0]
    return [earlier - later for earlier, later in zip(shares, shares[1:], strict=False)]


def in_order(names: Sequence[str]) -> list[int]:
    """The order of a run's checkpoints by the numbers in their names: step-200 comes before step-1000.

    Raises UsageError where the names do not differ in numbers alone: then nothing tells the order.
    """
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(part[::2]) for part in parts}) > 1:
        raise UsageError(
            "the names of the models tell no order: they differ in more than numbers",
            problems=names,
            hint="Name them alike (step-200.pt, step-400.pt), or give numbers: --weights W,W,…",
        )
    numbers = [tuple(map(int, part[1::2])) for part in parts]
    if len(set(numbers)) < len(names):
        raise UsageError(
            "the names of the models tell no order: two have the same numbers",
            problems=names,
            hint="Name a run's checkpoints by their steps, or give numbers: --weights W,W,…",
        )
    return sorted(range(len(names)), key=numbers.__getitem__)
