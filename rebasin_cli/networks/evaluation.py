"""How good a network is: mean loss, accuracy and calibration over batches.

Sums are float64, so how the samples are batched hardly matters. Every module is in evaluation mode
meanwhile and leaves in the mode it came in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..datasets.batches import checked, describe, size_of, to_device
from ..errors import DataError, NetworkError
from ..registry import user_code
from ..runtime import devices
from ..types import Batches
from .folding import folded
from .layout import in_parts
from .running import evaluating, fed

BINS = 15
MEASURED = {"--loss": "cross-entropy", "--metric": "accuracy"}  # where the user does not say


@dataclass(frozen=True)
class Scores:
    """`loss` in nats a sample (inf where the network's outputs are no numbers), `accuracy` 0–1.

    `ece` is the expected calibration error over bins of equal width, 0–1 (Guo et al. 2017, eq. 3,
    arXiv:1706.04599), of all targets; NaN where the outputs are not logits (N, classes, …). `bins` are those
    bins: how many targets, their mean confidence, their accuracy, each as long as there are bins, NaN in
    empty ones; () where there is no `ece`.
    `each` holds every sample's loss and accuracy, float32 (samples, 2) in the data's order, where asked for.
    """

    loss: float
    accuracy: float
    samples: int
    ece: float
    bins: tuple[tuple[float, ...], ...] = field(default=(), repr=False, compare=False)
    each: Tensor | None = field(default=None, repr=False, compare=False)


def evaluate(
    network: nn.Module,
    batches: Batches,
    *,
    loss: Callable[[Tensor, Any], Any] | None = None,
    metric: Callable[[Tensor, Any], Any] | None = None,
    output: str | int | None = None,
    device: str | torch.device = "cpu",
    each: bool = False,
    bins: int = BINS,
) -> Scores:
    """Measure `network`, already on `device`, on `(inputs, targets)` batches.

    `loss(outputs, targets)` is a batch's mean (default: cross-entropy); so is `metric(outputs, targets)`,
    larger is better (default: accuracy). `output` picks one of several outputs by key or index. `each` keeps
    the figures of every sample, where loss and metric are the defaults: a batch's mean says nothing of those.
    Calibration is over so many `bins`.
    Raises DataError for what is wrong with the batches, NetworkError for what is wrong with the network.
    """
    total = right = 0.0
    samples, logits = 0, True
    filled = torch.zeros(3, bins, dtype=torch.float64)  # samples, sums of confidence and of right answers
    lacking = [name for name, own in (("--loss", loss), ("--metric", metric)) if own is None]
    kept: list[Tensor] | None = [] if each and loss is None and metric is None else None
    with ExitStack() as stack:
        stack.enter_context(evaluating(network))
        stack.enter_context(torch.inference_mode())
        for number, (inputs, targets) in enumerate(checked(batches)):
            size = size_of(targets)
            targets, inputs = to_device(targets, device), fed(network, inputs, device)
            if not samples:
                stack.enter_context(folded(network, inputs, output))
            outputs = in_parts(network, inputs, output)
            if loss is None or metric is None:
                check_logits(outputs, targets, number, lacking)
            value = cross_entropy(outputs, targets) if loss is None else _apply(loss, outputs, targets)
            total += size * (math.inf if math.isnan(value) else value)
            right += size * (accuracy if metric is None else _metric(metric))(outputs, targets)
            samples += size
            logits &= loss is None
            if logits:
                _fill(filled, outputs, targets)
            if kept is not None:
                kept.append(_each(outputs, targets))
    found = _calibration(filled) if logits else {}
    return Scores(
        total / samples,
        right / samples,
        samples,
        found.pop("ece", math.nan),
        tuple(map(tuple, found.values())),
        torch.cat(kept) if kept is not None else None,
    )


def cross_entropy(outputs: Tensor, targets: Tensor) -> float:
    """Mean cross-entropy in nats, in float64."""
    return F.cross_entropy(_wide(outputs), targets).item()


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """How often the largest logit is the label's, 0–1; outputs with NaN are wrong."""
    right = _right(outputs, targets)
    return right.sum().item() / right.numel()


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets) & ~outputs.isnan().any(dim=1)


def _metric(function: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Any], float]:
    return lambda outputs, targets: _apply(function, outputs, targets)


def _apply(function: Callable[[Tensor, Any], Any], outputs: Tensor, targets: Any) -> float:
    with user_code(f"{name_of(function)} fails"):
        return float(function(outputs, targets))


def name_of(function: Callable[..., Any]) -> str:
    """What a user's loss or metric is called, for messages."""
    return getattr(function, "__name__", type(function).__name__)


def check_logits(
    outputs: Tensor, targets: Any, number: int, lacking: Sequence[str] = ("--loss", "--metric")
) -> None:
    """Whether cross-entropy and accuracy mean anything here. Raises DataError or NetworkError.

    `lacking` are those of these two options that the user did not give.
    """
    measured = " and ".join(MEASURED[option] for option in lacking)
    own = f"give {' and '.join(f'{option} module:function' for option in lacking)}."
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64:
        raise DataError(
            f"batch {number}: targets are {describe(targets)}; "
            f"for {measured} expected class numbers, int64 (N,)",
            hint=f"For other targets {own}",
        )
    if outputs.ndim > 2 and outputs.shape[:-1] == targets.shape != outputs.shape[:1] + outputs.shape[2:]:
        wanted = (outputs.shape[0], outputs.shape[-1], *outputs.shape[1:-1])
        raise NetworkError(
            f"batch {number}: outputs {tuple(outputs.shape)} have their classes in the last axis, by "
            f"the targets {tuple(targets.shape)}; expected in the second, {wanted}",
            hint="Let the network of --net return logits.movedim(-1, 1), as PyTorch's losses want them.",
        )
    if outputs.ndim < 2 or outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        raise NetworkError(
            f"batch {number}: outputs {tuple(outputs.shape)} do not fit targets {tuple(targets.shape)}; "
            "expected (N, classes) and (N,), or (N, classes, T) and (N, T)",
            hint=f"Where they are no logits of classes {own}",
        )
    low, high = map(int, targets.aminmax())
    if low < 0 or high >= outputs.shape[1]:
        raise DataError(
            f"batch {number}: targets lie in {low}…{high}, but the network knows {outputs.shape[1]} classes",
            hint="Is this the data set that the network was trained on?",
        )


def calibrated(outputs: Tensor, targets: Tensor, bins: int = BINS) -> dict[str, Any]:
    """The `ece` of logits (N, classes) over so many bins, and each bin's samples, confidence, accuracy."""
    found = torch.zeros(3, bins, dtype=torch.float64)
    _fill(found, outputs, targets)
    return _calibration(found)


def _calibration(bins: Tensor) -> dict[str, Any]:
    names = {"samples": bins[0], "confidence": bins[1] / bins[0], "accuracy": bins[2] / bins[0]}
    error = ((bins[1] - bins[2]).abs().sum() / bins[0].sum()).item()
    return {"ece": error, **{name: row.tolist() for name, row in names.items()}}


def _fill(bins: Tensor, outputs: Tensor, targets: Tensor) -> None:
    outputs, targets = outputs.movedim(1, -1).flatten(0, -2), targets.flatten()
    confidence, chosen = _wide(outputs).softmax(dim=1).nan_to_num(0.0).cpu().double().max(dim=1)
    count = bins.shape[1]
    index = (confidence * count).ceil().long().sub(1).clamp(0, count - 1)  # (0, 1/15], (1/15, 2/15], …
    bins[0].index_add_(0, index, torch.ones_like(confidence))
    bins[1].index_add_(0, index, confidence)
    bins[2].index_add_(0, index, (chosen == targets.cpu()).double())


def _each(outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss and accuracy of every sample, (N, 2); of a sample with many targets, their mean."""
    losses = F.cross_entropy(_wide(outputs), targets, reduction="none").nan_to_num(math.inf, posinf=math.inf)
    both = torch.stack([losses, _right(outputs, targets).to(losses)], dim=1)
    return both.flatten(2).mean(2).float().cpu() if both.ndim > 2 else both.float().cpu()


def _wide(outputs: Tensor) -> Tensor:
    return outputs.double() if devices.has_float64(outputs.device) else outputs.float()
