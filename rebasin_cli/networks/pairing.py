"""Whether one number of a batch is a mean, and says which target belongs to which output.

Outputs (N, 1) beside targets (N,) are broadcast to (N, N), and the mean of that compares every output with
every target: a figure, and of nothing that anybody asked for. A sum is another figure for other batches, and
so is the mean of what has weights or masks of its own. Functions are judged by what they do, not by names.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from ..datasets.batches import describe, part_of
from ..errors import NetworkError

__all__ = ["check_number", "check_parts", "muted_if_refused"]

log = logging.getLogger("rebasin")
NEAR = 1e-4  # of the largest figure: what counts as the same
TURNS = (1, 2, 3, 5, 7, 11)  # places: counts, such as precision, are the same after one by chance
NAMED: set[str] = set()  # of whom it was told that other batches give another figure


def check_number(
    name: str, function: Callable[[Any, Any], Any], outputs: Any, targets: Any, found: Tensor, count: int
) -> bool:
    """Raise NetworkError where what a function `found` of so many samples is a number of all pairs, or a sum.

    Where it is no mean of its samples either, that is said once. Whether these samples told: where many
    of them are alike, or the function refuses what it is asked, others may.
    """
    if found.ndim:
        return True
    told = True
    if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
        told = False
        with suppress(ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError):
            # which a user's code may raise of targets that are no data, such as of one class
            told = _check_pairs(name, function, outputs, targets, found)
    parts = check_parts(
        name,
        found,
        count,
        lambda start, stop: function(part_of(outputs, start, stop), part_of(targets, start, stop)),
    )
    return told and parts


def _check_pairs(
    name: str, function: Callable[[Any, Any], Any], outputs: Tensor, targets: Tensor, found: Tensor
) -> bool:
    """As `check_number`, of what is broadcast, and the same for other pairs.

    What takes no notice of targets at all, whichever they are, is let through.
    """
    if not targets.ndim or not outputs.ndim or len(outputs) != len(targets):
        return True
    if torch.equal(targets.roll(1, 0), targets):
        return False
    if not all(_same(function(outputs, targets.roll(k, 0)), found) for k in TURNS):
        return True
    first = targets[:1].expand_as(targets)
    try:
        together = torch.broadcast_shapes(outputs.shape, targets.shape)
    except RuntimeError:
        together = ()
    if math.prod(together) <= max(outputs.numel(), targets.numel()):
        if _crossed(function, outputs, targets, float(found)):
            raise NetworkError(
                f"{name} is the same whichever target belongs to which output: it compares all with all, "
                f"though outputs are {describe(outputs)} and targets {describe(targets)}: it broadcasts them",
                hint="Compare tensors of one shape in the function, such as outputs[:, 0] and targets",
            )
        return False
    if not _same(function(outputs, first), found):
        raise NetworkError(
            f"{name} is the same whichever target belongs to which output: it compares all with all, since "
            f"outputs {describe(outputs)} and targets {describe(targets)} are broadcast to {tuple(together)}",
            hint="Bring them into one shape: outputs.squeeze(1) in the function, or targets[:, None] in the "
            "loader",
        )
    return False


def _crossed(function: Callable[[Any, Any], Any], outputs: Tensor, targets: Tensor, found: float) -> bool:
    """Whether a figure is the mean over all pairs of outputs and targets, by what it does.

    It is then the mean of what it is with every single target in place of all. So it is of a network, too,
    that answers all samples alike; but there what changes in half of the outputs and in the other half's
    targets adds up, as in any mean over samples.
    """
    half = len(targets) // 2
    moved, changed = outputs.clone(), targets.clone()
    moved[:half], changed[half:] = outputs[-1:], targets[:1]
    both, one = float(function(moved, changed)), float(function(moved, targets))
    other = float(function(outputs, changed))
    if abs(both - one - other + found) <= NEAR * max(map(abs, (both, one, other, found))):
        return False
    each = [float(function(outputs, targets[k : k + 1].expand_as(targets))) for k in range(len(targets))]
    return math.isclose(math.fsum(each) / len(each), found, rel_tol=NEAR)


def check_parts(name: str, found: Tensor, count: int, of: Callable[[int, int], Any]) -> bool:
    """Raise NetworkError where a figure adds up over samples; say it where it is not their mean.

    `of` gives the figure of some samples in a row, as `found` is that of all `count`. With sums over thirds
    A, B, C, whatever else is added to them, f(A) + f(B) − f(AB) is what f is of no sample at all, and so is
    f(AB) + f(C) − f(ABC); a mean has that only where all thirds are alike. Who cannot be asked may go on.
    Whether the thirds told.
    """
    third = count // 3
    if not third:
        return False
    parts = (0, third), (third, 2 * third), (2 * third, count), (0, 2 * third), (third, count)
    try:
        values = [of(*part) for part in parts]
        a, b, c, ab, bc = map(float, values)
    except Exception:  # whatever the user's code raises on such
        return False
    eps = max(
        (torch.finfo(v.dtype).eps for v in values if isinstance(v, Tensor) and v.is_floating_point()),
        default=0,
    )
    whole, near = float(found), max(NEAR, 16 * eps)
    largest = max(map(abs, (a, b, c, ab, bc, whole)))
    if not 0 < largest < math.inf:
        return False
    nothing = a + b - ab, ab + c - whole, b + c - bc
    telling = sum(abs(part - nothing[0]) > near * largest for part in (a, b, c))
    # What one third alone has, such as the one sample of a class, a sum and a ratio have alike
    if (
        telling > 1
        and max(nothing) - min(nothing) < near * largest
        and abs(whole - nothing[0]) > 10 * near * largest
    ):
        raise NetworkError(
            f"{name} adds up over the samples of a batch, so that it would grow with --batch-size: "
            f"{whole:.4g} of {count}, {ab:.4g} of the first {2 * third}",
            hint='Give one number a sample (reduction="none") or their mean (reduction="mean")',
        )
    apart = (third * (a + b) + (count - 2 * third) * c) / count
    if abs(apart - whole) > near * largest and name not in NAMED:
        NAMED.add(name)
        log.info(
            "%s of a batch is no mean over its samples: %.4g of %d together, %.4g as the mean of thirds; "
            "what is reported is the mean over batches, another one with another --batch-size. One number a "
            "sample, (N,), would not depend on it, nor would a metric that is an object",
            *(name, whole, count, apart),
        )
    return telling > 1


@contextmanager
def muted_if_refused() -> Iterator[None]:
    """What was warned of meanwhile is told at the end, and not where an error says it better."""
    with warnings.catch_warnings(record=True) as heard:
        yield
    for each in heard:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _same(value: Any, found: Tensor) -> bool:
    return math.isclose(float(value), float(found), rel_tol=1e-5)
