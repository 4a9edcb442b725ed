"""Whether one number of a batch is a mean, and says which target belongs to which output.

Outputs (N, 1) beside targets (N,) are broadcast to (N, N), and the mean of that compares every output with
every target: a figure, and of nothing that anybody asked for. A sum is another figure for other batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..datasets.batches import describe
from ..errors import NetworkError

__all__ = ["check_number"]


def check_number(
    name: str, function: Callable[[Any, Any], Any], outputs: Any, targets: Any, found: Tensor
) -> None:
    """Raise NetworkError where what a function `found` of a batch is one number of all pairs, or a sum."""
    if not found.ndim and isinstance(outputs, Tensor) and isinstance(targets, Tensor):
        _check_pairs(name, function, outputs, targets, found)
        _check_mean(name, function, outputs, targets, found)


def _check_pairs(
    name: str, function: Callable[[Any, Any], Any], outputs: Tensor, targets: Tensor, found: Tensor
) -> None:
    """As `check_number`, of what is broadcast, and the same for other pairs.

    What takes no notice of targets at all, whichever they are, is let through.
    """
    try:
        together = torch.broadcast_shapes(outputs.shape, targets.shape)
    except RuntimeError:
        return
    if math.prod(together) <= max(outputs.numel(), targets.numel()):
        return
    turned, first = targets.roll(1, 0), targets[:1].expand_as(targets)
    if torch.equal(turned, targets) or not _same(function(outputs, turned), found):
        return
    if not _same(function(outputs, first), found):
        raise NetworkError(
            f"{name} is the same whichever target belongs to which output: it compares all with all, since "
            f"outputs {describe(outputs)} and targets {describe(targets)} are broadcast to {tuple(together)}",
            hint="Bring them into one shape: outputs.squeeze(1) in the function, or targets[:, None] in the "
            "loader",
        )


def _check_mean(
    name: str, function: Callable[[Any, Any], Any], outputs: Tensor, targets: Tensor, found: Tensor
) -> None:
    """As `check_number`, of a sum: all samples twice give twice as much. Who cannot be asked may go on."""
    if not (outputs.ndim and targets.ndim and float(found)):
        return
    try:
        twice = float(function(outputs.repeat_interleave(2, 0), targets.repeat_interleave(2, 0)))
    except Exception:  # whatever the user's code raises on such
        return
    if math.isfinite(twice) and _same(twice, 2 * found):
        raise NetworkError(
            f"{name} adds up over the samples of a batch, so that it would grow with --batch-size: "
            f"{float(found):.4g} of {len(outputs)}, {twice:.4g} of these twice",
            hint='Give one number a sample (reduction="none") or their mean (reduction="mean")',
        )


def _same(value: Any, found: Tensor) -> bool:
    return math.isclose(float(value), float(found), rel_tol=1e-5)
