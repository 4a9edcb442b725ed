"""Means and deviations that inputs or targets were scaled by: which belong together, and which are unlike."""

from __future__ import annotations

import re
from collections.abc import Collection

DEVIATIONS = ("std", "stddev", "scale", "sigma")
FAR = 0.1  # of a deviation, by which two scalings differ that are not two measurements of one
LEVELS, SAME_LEVELS = 255, 0.01  # of a pixel, which some programs scale to 1 first: to `FAR` like that
Pair = tuple[list[float], list[float]]  # means and deviations, a number a channel, or one for all


def deviation(name: str, among: Collection[str], *more: str) -> str | None:
    """The deviations' name that goes with a name of means (`y_mean`, `y_std`); None where there is none.

    `more` are words for means beside that one.
    """
    for word in ("mean", *more):
        if name.endswith(word) and re.search(rf"(?:^|[._]){word}$", name):
            return next((its for end in DEVIATIONS if (its := name.removesuffix(word) + end) in among), None)
    return None


def far(one: Pair, other: Pair) -> bool:
    """Whether two scalings are further apart than those of two samples of the same values."""
    return unlike(one, other) is not None


def unlike(one: Pair, other: Pair, far: float = FAR) -> tuple[float, ...] | None:
    """The first mean and deviation of both that are `far` apart. One number goes for all channels."""
    sizes = {len(one[0]), len(other[0])}
    if len(sizes) > 1 and 1 not in sizes:
        return one[0][0], one[1][0], other[0][0], other[1][0]
    columns = (its * (max(sizes) if len(its) == 1 else 1) for its in (*one, *other))
    every = [*zip(*columns, strict=True)]
    for levels in (LEVELS, 1 / LEVELS):
        if not any(_apart(a * levels, s * levels, b, t, min(far, SAME_LEVELS)) for a, s, b, t in every):
            return None
    return next(((a, s, b, t) for a, s, b, t in every if _apart(a, s, b, t, far)), None)


def _apart(a: float, s: float, b: float, t: float, far: float) -> bool:
    return abs(a - b) > far * min(s, t) or max(s, t) > (1 + far) * min(s, t)
