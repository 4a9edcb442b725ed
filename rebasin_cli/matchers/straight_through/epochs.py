"""One pass over training samples: in an order of its own, so many of them, and which batch is the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ...datasets import Data
from ...datasets.batches import checked, head, size_of


def epoch(
    train: Iterable[Any],
    rng: torch.Generator,
    *,
    limit: int | None = None,
    least: int = 1,
    augment: bool = False,
) -> Iterator[tuple[Any, Any]]:
    """The batches, a data set's in an order that `rng` draws, up to `limit` samples.

    One with fewer than `least` samples is left out: norms need several.
    """
    left = limit
    for inputs, targets in (
        train.shuffled(rng, augment=augment) if isinstance(train, Data) else checked(train)
    ):
        size = size_of(targets, inputs)
        if left is not None and size > left:
            inputs, targets, size = head(inputs, left), head(targets, left), left
        if size >= least:
            yield inputs, targets
        left = None if left is None else left - size
        if left is not None and left <= 0:
            return


def with_last(items: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Each item, and whether it is the last."""
    for item in items:
        for following in items:
            yield item, False
            item = following
        yield item, True
