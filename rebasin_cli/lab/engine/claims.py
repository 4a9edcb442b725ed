"""A claim of a paper, the number that decides it, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...measure.intervals import interval, resampled_means, t_interval
from ...reports.document import Line, Panel

__all__ = ["Line", "Outcome", "Panel", "Table"]
CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"
ABOVE, BELOW = (0.0, math.inf), (-math.inf, 0.0)


@dataclass(frozen=True)
class Claim:
    """What `source` says of a number, in words and as the range that it `expected` it in.

    `about` names the number; `estimate` and `interval` (95 %) are what was measured: both ends equal where
    nothing is random, () where there is no telling.
    """

    source: str
    says: str
    about: str
    expected: tuple[float, float]
    estimate: float
    interval: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """Confirmed where the whole interval is within what was expected, refuted where none of it is."""
        if len(self.interval) != 2 or not all(map(math.isfinite, self.interval)):
            return UNDECIDED
        (low, high), (least, most) = self.interval, self.expected
        if least <= low and high <= most:
            return CONFIRMED
        return REFUTED if high < least or most < low else UNDECIDED

    def plain(self) -> dict[str, Any]:
        told: dict[str, Any] = {"source": self.source, "says": self.says, "about": self.about}
        ends = [end if math.isfinite(end) else None for end in self.expected]  # None: open
        told |= {"expected": ends, "estimate": self.estimate}
        return told | {"interval": list(self.interval), "verdict": self.verdict}


def exact(source: str, says: str, about: str, expected: tuple[float, float], value: float) -> Claim:
    """A claim on a number that is computed, and not drawn."""
    return Claim(source, says, about, expected, value, (value, value))


def mean(source: str, says: str, about: str, expected: tuple[float, float], values: Sequence[float]) -> Claim:
    """A claim on the mean of what several runs gave, with Student's interval; of one run undecided."""
    average = math.fsum(values) / len(values)
    if len(set(values)) == 1 and len(values) > 1:  # no spread, so no rounding of it either
        return Claim(source, says, about, expected, average, (average, average))
    return Claim(source, says, about, expected, average, t_interval(values))


def share(source: str, says: str, about: str, expected: tuple[float, float], hits: int, tries: int) -> Claim:
    """A claim on how often something happens, with Wilson's interval."""
    rate, z = hits / tries, 1.959963984540054
    middle = (rate + z * z / (2 * tries)) / (1 + z * z / tries)
    half = z / (1 + z * z / tries) * math.sqrt(rate * (1 - rate) / tries + z * z / (4 * tries**2))
    between = (max(0.0, middle - half), min(1.0, middle + half))
    return Claim(source, says, about, expected, rate, between)


def bootstrap(
    rows: Sequence[Sequence[float]], function: Callable[[Tensor], Tensor], *, seed: int
) -> tuple[float, tuple[float, ...]]:
    """`function` of the columns' means, (..., columns) to (...), and its 95 % interval.

    For that, rows are drawn anew with replacement.
    """
    table = torch.tensor(rows, dtype=torch.float64)
    return float(function(table.mean(0))), interval(function(resampled_means(table, seed=seed)).double())


@dataclass(frozen=True)
class Table:
    """A cell is a text or a number, None where there is none."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Outcome:
    claims: Sequence[Claim]
    tables: Sequence[Table]
    panels: Sequence[Panel]
    notes: Sequence[str] = field(default=())

    def plain(self) -> dict[str, Any]:
        """For JSON: the claims and tables; a picture is drawn from these."""
        tables = [{"title": t.title, "columns": list(t.columns), "rows": list(t.rows)} for t in self.tables]
        return {"claims": [c.plain() for c in self.claims], "tables": tables, "notes": list(self.notes)}
