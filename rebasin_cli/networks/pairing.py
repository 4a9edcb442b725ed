"""Whether one number of a batch says which target belongs to which output.

Outputs (N, 1) beside targets (N,) are broadcast to (N, N), and the mean of that compares every output with
every target: a figure, and of nothing that anybody asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..datasets.batches import describe
from ..errors import NetworkError

__all__ = ["check_pairs"]


def check_pairs(
    name: str, function: Callable[[Any, Any], Any], outputs: Any, targets: Any, found: Tensor
) -> None:
    """Raise NetworkError where `found`, one number, is of all pairs: broadcast, and the same for others.

    What takes no notice of targets at all, whichever they are, is let through.
    """
    if found.ndim or not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return
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


def _same(value: Any, found: Tensor) -> bool:
    return math.isclose(float(value), float(found), rel_tol=1e-5)
