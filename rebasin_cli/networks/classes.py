"""Outputs as logits of classes: whether they are, their cross-entropy and accuracy, of every sample."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..datasets.batches import describe
from ..errors import DataError, NetworkError
from ..runtime import devices
from .forward import select

log = logging.getLogger("rebasin")
_told: set[int] = set()  # targets of which it was said that they do not count
IGNORED = -100  # a target that does not count, as PyTorch's losses have it
CLASSES = {"--loss": "cross-entropy", "--metric": "accuracy"}  # where the user does not say


def fit_classes(outputs: Any, targets: Any) -> bool:
    """Whether outputs are logits and targets their class numbers, as far as shapes tell."""
    try:
        logits_of(outputs, targets, 0)
    except (DataError, NetworkError):
        return False
    return True


def without_ignored(outputs: Any, targets: Any, ignored: int | None, left_out: set[int]) -> Any:
    """Class numbers as a user's loss has them: what it leaves out is IGNORED.

    That is its own `ignored` number, and one that is of no class of these outputs: the loss took it, and it
    joins those `left_out` before. Several such numbers are none that it leaves out, nor is the one after the
    last class, which a loss of orders has (a class more than outputs), nor any where there is one output:
    that is a truth or a count.
    """
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64 or not targets.numel():
        return targets
    if ignored is not None:
        targets = targets.masked_fill(targets == ignored, IGNORED)
    try:
        logits = turned(outputs, targets)
    except NetworkError:  # several outputs, of which the loss knows what they are
        return targets
    if logits.ndim < 2 or logits.shape[1] < 2:
        return targets
    unknown = (targets != IGNORED) & ((targets < 0) | (targets >= logits.shape[1]))
    found = targets[unknown]
    if not found.numel() or bool((found != found[0]).any()) or int(found[0]) == logits.shape[1]:
        return targets
    left_out.add(value := int(found[0]))
    if value not in _told:
        _told.add(value)
        log.info(
            "targets of %d, which is none of the network's %d classes, do not count in accuracy",
            *(value, logits.shape[1]),
        )
    return targets.masked_fill(unknown, IGNORED)


def logits_of(
    outputs: Any, targets: Any, number: int, lacking: Iterable[str] = ("--loss", "--metric")
) -> Tensor:
    """Logits (N, classes, …) of class numbers (N, …), the classes' axis found by the targets' shape.

    They may be in the last axis, as transformers have them. Targets of −100 do not count. `lacking` are those
    of the two options that the user did not give. Raises DataError or NetworkError where cross-entropy and
    accuracy mean nothing here.
    """
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64:
        lacking = list(lacking)
        raise DataError(
            f"batch {number}: targets are {describe(targets)}; "
            f"for {' and '.join(CLASSES[option] for option in lacking)} expected class numbers, int64 (N,)",
            hint=f"For other targets {_give(lacking)}",
        )
    logits = turned(outputs, targets)
    if logits.ndim < 2 or logits.shape[:1] + logits.shape[2:] != targets.shape:
        raise NetworkError(
            f"batch {number}: outputs {tuple(logits.shape)} do not fit targets {tuple(targets.shape)}; "
            "expected (N, classes) and (N,), or (N, classes, T) and (N, T)",
            hint=f"Where they are no logits of classes {_give(lacking)}",
        )
    low, high = _limits(targets)
    if low < 0:  # some may not count
        low, high = _limits(targets[targets != IGNORED])
    if low < 0 or high >= logits.shape[1]:
        raise DataError(
            f"batch {number}: targets lie in {low}…{high}, but the network knows {logits.shape[1]} classes",
            hint="Is this the data set that the network was trained on?",
        )
    return logits


def _give(lacking: Iterable[str]) -> str:
    return f"give {' and '.join(f'{option} module:function' for option in lacking)}."


def _limits(targets: Tensor) -> tuple[int, int]:
    """The least and the largest; 0 where there are none."""
    if not targets.numel():
        return 0, 0
    low, high = targets.aminmax()
    return int(low), int(high)


def any_counts(targets: Any) -> bool:
    """Whether any target counts, of class numbers."""
    return not isinstance(targets, Tensor) or bool((targets != IGNORED).any())


def counted(targets: Tensor) -> int:
    """How many class numbers count."""
    return int((targets != IGNORED).sum())


def turned(outputs: Any, targets: Tensor) -> Tensor:
    """Logits with the classes in the second axis; in the last, where shapes fit so and not otherwise."""
    logits = select(outputs, None)
    last = logits.ndim > 2 and logits.shape[:-1] == targets.shape
    return logits.movedim(-1, 1) if last and logits.shape[:1] + logits.shape[2:] != targets.shape else logits


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of every sample in nats, float64 (N,); of a sample with many targets the mean of those that count.

    In the outputs' own numbers, as a user's loss has it: both give the same figure. NaN of samples whose
    targets do not count at all; infinite where the outputs are no numbers.
    """
    losses = F.cross_entropy(summed(outputs), targets, reduction="none")
    return _by_sample(losses.nan_to_num(math.inf, posinf=math.inf), targets)


def divergences(outputs: Tensor, wanted: Tensor, targets: Tensor) -> Tensor:
    """How far the probabilities of logits (N, classes, …) are from those `wanted`, in nats, float64 (N,).

    The Kullback-Leibler divergence from `wanted`, by sample as `cross_entropies`: targets say what counts.
    """
    given, wanted = wide(outputs).log_softmax(dim=1), wide(wanted)
    each = torch.where(wanted > 0, wanted * (wanted.log() - given), 0.0).sum(dim=1)
    return _by_sample(each.nan_to_num(math.inf, posinf=math.inf), targets)


def accuracies(outputs: Tensor, targets: Tensor) -> Tensor:
    """How often the largest logit is the label's, 0–1, float64 (N,); outputs with NaN are wrong."""
    right = (outputs.argmax(dim=1) == targets) & ~outputs.isnan().any(dim=1)
    return _by_sample(right, targets)


def _by_sample(values: Tensor, targets: Tensor) -> Tensor:
    values = values.cpu().double()
    if values.ndim < 2:
        return values.masked_fill((targets == IGNORED).cpu(), math.nan)
    counted = (targets != IGNORED).flatten(1).cpu()
    return values.flatten(1).masked_fill(~counted, 0.0).sum(1) / counted.sum(1)


def summed(outputs: Tensor) -> Tensor:
    """In float32 at least: 16 bits are too few to sum in."""
    return outputs.float() if outputs.element_size() < 4 else outputs


def wide(outputs: Tensor) -> Tensor:
    """In float64, where the device has it."""
    return outputs.double() if devices.has_float64(outputs.device) else outputs.float()


def by_class(logits: Tensor, targets: Tensor) -> Tensor:
    """Targets of every class, and right answers among them, int64 (2, classes)."""
    chosen = logits.argmax(dim=1)[targets != IGNORED].flatten().cpu()
    known = targets[targets != IGNORED].flatten().cpu()
    count = logits.shape[1]
    return torch.stack([torch.bincount(some, minlength=count) for some in (known, known[chosen == known])])


def widened(counted: Tensor, classes: int) -> Tensor:
    """The same, with room for so many classes."""
    return counted if counted.shape[1] else torch.zeros(2, classes, dtype=torch.int64)
