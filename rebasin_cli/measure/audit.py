"""An audit of a merge: the classes, and the samples, that its models have right and it has not.

A merge may keep the mean of its figures and forget what is rare (Ainsworth et al. 2022, ethics statement).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..networks.evaluation import Scores
from ..reports import ClassFlips, ClassShare, Flips
from ..types import ACCURACY, Quantity
from .intervals import share_interval

WORST = 5  # classes
MOST = 1_000  # samples that are named


def lost_most(score: Scores, ends: Sequence[Scores]) -> tuple[ClassShare, ...]:
    """The classes that lose most accuracy against the mean of the `ends`, the most first; as few as five.

    A class without samples is none. () where accuracy is not measured, or no ends are known.
    """
    if not ends or any(ACCURACY not in one.quantities or not one.classes for one in (score, *ends)):
        return ()
    found = []
    for number, (count, right) in enumerate(score.classes):
        before = [end.classes[number] for end in ends]
        if count and all(samples for samples, _ in before):
            mean = sum(good / samples for samples, good in before) / len(before)
            found.append(ClassShare(number, count, right / count, share_interval(right, count), mean))
    return tuple(sorted(found, key=lambda one: -one.drop)[:WORST])


def flips(score: Scores, ends: Sequence[Scores]) -> Flips | None:
    """The samples that all `ends` have right, and this model has not.

    By the first metric that is 0 or 1 of every sample, such as accuracy; None where there is none.
    """
    for metric in score.quantities[1:] if ends else ():
        rights = [_right(one, metric) for one in (score, *ends)]
        known = [one for one in rights if one is not None]
        if len(known) == len(rights):
            return _flipped(metric.key, known[0], torch.stack(known[1:]), score.numbers)
    return None


def _right(score: Scores, metric: Quantity) -> Tensor | None:
    """Which samples are right, bool (samples,)."""
    values = score.sampled(metric.key)
    if values is None or not bool(((values == 0) | (values == 1)).all()):
        return None
    return (values == 1) == metric.larger_is_better


def _flipped(key: str, right: Tensor, ends: Tensor, numbers: Tensor | None) -> Flips:
    both = ends.all(0)
    lost, gained = both & ~right, right & ~ends.any(0)
    count = int(lost.sum())
    return Flips(
        key,
        len(right),
        int(both.sum()),
        count,
        int(gained.sum()),
        share_interval(count, len(right)),
        () if numbers is None or bool((numbers < 0).any()) else _by_class(both, lost, numbers),
        tuple(lost.nonzero()[:MOST].flatten().tolist()),
    )


def _by_class(both: Tensor, lost: Tensor, numbers: Tensor) -> tuple[ClassFlips, ...]:
    """The classes that lose the largest share of what was right, the largest first."""
    classes = int(numbers.max()) + 1
    counts = (torch.bincount(numbers[some], minlength=classes).tolist() for some in (both, lost))
    found = [
        ClassFlips(number, right, gone, share_interval(gone, right))
        for number, (right, gone) in enumerate(zip(*counts, strict=True))
        if gone
    ]
    return tuple(sorted(found, key=lambda one: -one.lost / one.both)[:WORST])
