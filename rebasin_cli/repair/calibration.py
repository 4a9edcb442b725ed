"""One number that makes logits as sure as they should be. Weights stay as they are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import UsageError

COLDEST, HOTTEST = 1e-2, 1e2


def temperature(logits: Tensor, targets: Tensor) -> float:
    """The T for which `logits / T` has the least mean cross-entropy; above 1 the logits were too sure.

    `logits` (N, classes) and `targets`, int64 (N,), are of samples that the network is not tested on. The
    loss is convex in 1/T, and its slope is bisected in float64. T stays within 0.01–100: logits that are
    always right have no best one, nor have those that say nothing. Accuracy does not change. Raises
    UsageError for what are no such logits and targets.

    Guo et al. 2017, section 4.2 ("temperature scaling"), arXiv:1706.04599.

    >>> import torch
    >>> temperature(torch.tensor([[4.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])) > 3
    True
    """
    fits = logits.ndim == 2 and targets.shape == logits.shape[:1] and targets.dtype == torch.int64
    if not fits or not len(logits) or not bool(torch.isfinite(logits).all()):
        raise UsageError("a temperature is fitted to finite logits (N, classes) and classes, int64 (N,)")
    if not 0 <= int(targets.min()) <= int(targets.max()) < logits.shape[1]:
        raise UsageError(f"targets do not lie in 0…{logits.shape[1] - 1}")
    values = logits.detach().cpu().double()
    chosen = values.gather(1, targets.detach().cpu()[:, None]).squeeze(1)

    def slope(log_t: float) -> float:
        """Of the loss with respect to 1/T, at T = exp(log_t): rises with 1/T."""
        expected = ((values / math.exp(log_t)).softmax(1) * values).sum(1)
        return (expected - chosen).mean().item()

    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(60):
        middle = (low + high) / 2
        if slope(middle) > 0:  # the loss falls as 1/T does
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)
