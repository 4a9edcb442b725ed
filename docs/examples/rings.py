"""Rings: 600 points of the plane on three rings around the middle, 3 classes; drawn, not downloaded."""

import math
from pathlib import Path

import torch

from rebasin_cli.datasets import UNIT, Samples

NORMALIZATION = UNIT  # values are in 0–1 already
CLASSES = 3


def load(split: str, root: Path | None) -> Samples:
    """Inputs (N, 2) in 0–1, targets (N,): the number of the ring. `root` is not asked."""
    rng = torch.Generator().manual_seed({"train": 1, "test": 2}[split])
    targets = torch.arange(600) % CLASSES
    angle = 2 * math.pi * torch.rand(600, generator=rng)
    radius = (targets + 0.75 + 0.5 * torch.rand(600, generator=rng)) / 8
    inputs = 0.5 + radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return Samples(inputs, targets)
