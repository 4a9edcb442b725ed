"""One number that makes logits as sure as they should be, and a network whose logits are divided by it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..datasets.batches import checked
from ..errors import UsageError
from ..networks.classes import IGNORED, turned
from ..networks.forward import evaluating, fed, inputs_of
from ..networks.layout import Wrapper, in_parts

COLDEST, HOTTEST = 1e-2, 1e2
FITTED = 1 << 20  # logits that a temperature is fitted to again and again, while something is learnt
MOST = 1 << 23  # logits: of more, as many targets of a window make, some at even distances are enough


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


def rows_of(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, classes, …) with their targets (N, …) that count as (M, classes) and (M,)."""
    rows, wanted = turned(logits, targets).movedim(1, -1).flatten(0, -2), targets.flatten()
    counted = wanted != IGNORED
    return (rows, wanted) if bool(counted.all()) else (rows[counted], wanted[counted])


def _some(logits: Tensor, targets: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Rows at even distances, of so many numbers at most."""
    step = math.ceil(logits.numel() / most)
    return logits[::step], targets[::step]


def calibrated_loss(logits: Tensor, targets: Tensor) -> float:
    """The mean cross-entropy, in nats, of logits (N, classes) at their best temperature.

    That is fitted on some of them at even distances where there are many. Raises UsageError as `temperature`.
    """
    return F.cross_entropy(logits / temperature(*_some(logits, targets, FITTED)), targets).item()


class Scaled(Wrapper):
    """A network's logits divided by the temperature that fits held-out samples best.

    Weights stay as they are. `details` tells the temperature, which is 1 where none is best, and why.

    Guo et al. 2017, section 4.2, arXiv:1706.04599.
    """

    def __init__(self, network: nn.Module, held: Iterable[Any], output: str | int | None, device: str):
        super().__init__()
        self.network, self.output = network, output
        self.temperature, why = best_temperature(network, held, output=output, device=device)
        self.details = {"temperature": self.temperature} | ({"why": why} if why else {})

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        inputs = inputs_of(args, kwargs)
        divided: Tensor = in_parts(self.network, inputs, self.output) / self.temperature
        return divided


def best_temperature(
    network: nn.Module, held: Iterable[Any], *, output: str | int | None = None, device: str = "cpu"
) -> tuple[float, str]:
    """As `fit_temperature`, and ""; 1, and why, where none is best.

    Of logits that are right on all samples, as of those that are known by heart, every smaller one is better.
    """
    found = fit_temperature(network, held, output=output, device=device)
    if 1.01 * COLDEST < found < HOTTEST / 1.01:  # not NaN
        return found, ""
    return 1.0, "logits are not finite" if math.isnan(found) else "no temperature is best on these samples"


def fit_temperature(
    network: nn.Module, held: Iterable[Any], *, output: str | int | None = None, device: str = "cpu"
) -> float:
    """The temperature of least loss on `held`, batches that the network is not tested on.

    Samples may have many targets, logits (N, classes, …). NaN where some logits are not finite: what divides
    them by it has no loss either.
    """
    logits, targets = [], []
    with evaluating(network), torch.inference_mode():
        for inputs, wanted in checked(held):
            given = in_parts(network, fed(network, inputs, device), output).cpu()
            rows, wanted = rows_of(given, wanted.cpu())
            logits.append(rows)
            targets.append(wanted)
    every, wanted = torch.cat(logits), torch.cat(targets)
    if not every.isfinite().all():
        return math.nan
    return temperature(*_some(every, wanted, MOST))
