"""How sure a mean is: over the samples of one measurement, and over several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..runtime.seeds import generator

CONFIDENCE = 0.95
RESAMPLES = 1_000
SLAB = 32 << 20  # bytes of resampled counts held at a time


def resampled_means(values: Tensor, *, seed: int) -> Tensor:
    """The means of every column over samples drawn anew, with replacement, float64 (RESAMPLES, columns).

    All columns of `values` (samples, columns) see the same draws, so differences of columns are paired.
    Columns that hold NaN or infinities give NaN. Memory is bounded whatever the number of samples.

    Efron and Tibshirani 1993, chapters 6 and 13.
    """
    count = len(values)
    finite = torch.isfinite(values).all(0)
    known = torch.where(finite, values, 0).double()
    draws = generator(seed, "bootstrap")
    slab = max(1, min(RESAMPLES, SLAB // (16 * count)))  # int64 draws and float64 counts
    means = []
    for start in range(0, RESAMPLES, slab):
        rows = min(slab, RESAMPLES - start)
        drawn = torch.randint(count, (rows, count), generator=draws)
        counts = torch.zeros(rows, count, dtype=torch.float64)
        counts.scatter_add_(1, drawn, torch.ones(1, 1, dtype=torch.float64).expand(rows, count))
        means.append(counts @ known / count)
    return torch.where(finite, torch.cat(means), math.nan)


def interval(draws: Tensor) -> tuple[float, ...]:
    """(low, high) that 95 % of the draws (n,) lie within, equally many beyond either end; () with NaN."""
    if bool(draws.isnan().any()):
        return ()
    tail = (1 - CONFIDENCE) / 2
    low, high = torch.quantile(draws, torch.tensor([tail, 1 - tail], dtype=draws.dtype)).tolist()
    return low, high


def t_interval(values: Sequence[float]) -> tuple[float, ...]:
    """(low, high): Student's 95 % interval of the mean; () of fewer than two values, or not all finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return ()
    from scipy.stats import t

    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * math.sqrt(variance / len(values))
    return mean - half, mean + half
