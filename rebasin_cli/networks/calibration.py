"""How far a network's confidence and accuracy lie apart: bins of equal width, and their expected error.

Guo, Pleiss, Sun, Weinberger 2017, "On Calibration of Modern Neural Networks", arXiv:1706.04599, section 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .classes import IGNORED, wide

BINS = 15


def calibrated(outputs: Tensor, targets: Tensor, bins: int = BINS) -> dict[str, Any]:
    """The `ece` of logits (N, classes) over so many bins, and each bin's samples, confidence, accuracy."""
    found = torch.zeros(3, bins, dtype=torch.float64)
    fill(found, outputs, targets)
    return calibration(found)


def calibration(bins: Tensor) -> dict[str, Any]:
    """The same from what `fill` added up in `bins`, float64 (3, bins)."""
    names = {"samples": bins[0], "confidence": bins[1] / bins[0], "accuracy": bins[2] / bins[0]}
    error = ((bins[1] - bins[2]).abs().sum() / bins[0].sum()).item()
    return {"ece": error, **{name: row.tolist() for name, row in names.items()}}


def fill(bins: Tensor, outputs: Tensor, targets: Tensor) -> None:
    """Add the targets that count to float64 (3, bins): how many, their confidences, right answers."""
    outputs, targets = outputs.movedim(1, -1).flatten(0, -2), targets.flatten()
    if not bool((counted := targets != IGNORED).all()):
        outputs, targets = outputs[counted], targets[counted]
    confidence, chosen = wide(outputs).softmax(dim=1).nan_to_num(0.0).cpu().double().max(dim=1)
    count = bins.shape[1]
    index = (confidence * count).ceil().long().sub(1).clamp(0, count - 1)  # (0, 1/15], (1/15, 2/15], …
    bins[0].index_add_(0, index, torch.ones_like(confidence))
    bins[1].index_add_(0, index, confidence)
    bins[2].index_add_(0, index, (chosen == targets.cpu()).double())
