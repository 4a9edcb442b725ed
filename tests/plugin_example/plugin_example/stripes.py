"""Stripes: 400 points of the plane in four vertical stripes, 4 classes; drawn, not downloaded."""

from __future__ import annotations

from pathlib import Path

import torch

from rebasin_cli.datasets import UNIT, Samples

NORMALIZATION = UNIT
CLASSES = 4


def load(split: str, root: Path | None) -> Samples:
    rng = torch.Generator().manual_seed({"train": 1, "test": 2}[split])
    inputs = torch.rand(400, 2, generator=rng)
    return Samples(inputs, (inputs[:, 0] * 4).long().clamp(max=3))
