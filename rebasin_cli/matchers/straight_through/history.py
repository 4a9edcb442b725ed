"""What searches that learn saw at the held-out samples: rows of figures, and one tensor that keeps them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

LOOKED = ("held_out_loss", "held_out_accuracy", "held_out_calibrated")  # by a look at held-out samples
COLUMNS = ("step", "loss", *LOOKED)


def packed(rows: Iterable[Mapping[str, float]]) -> torch.Tensor:
    """(rows, columns) float64, NaN where a row lacks a figure."""
    numbers = [[row.get(name, math.nan) for name in COLUMNS] for row in rows]
    return torch.tensor(numbers, dtype=torch.float64).reshape(-1, len(COLUMNS))


def unpacked(numbers: torch.Tensor) -> tuple[dict[str, float], ...]:
    """The rows again. Raises KeyError for those of a version that kept other figures."""
    if numbers.shape[-1] != len(COLUMNS):
        raise KeyError("held_out_calibrated")
    rows = (zip(COLUMNS, row, strict=True) for row in numbers.tolist())
    return tuple({name: value for name, value in row if not math.isnan(value)} for row in rows)
