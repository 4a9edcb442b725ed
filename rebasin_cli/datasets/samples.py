"""One split of a data set, in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Samples:
    """One split in memory: inputs (N, C, H, W) as bytes or float32 in 0–1, targets (N,) int64.

    Of text both are numbers of characters in the `vocabulary`, int64 (N, T), targets one character on.
    """

    inputs: Tensor
    targets: Tensor
    vocabulary: str | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def at(self, chosen: Tensor) -> Samples:
        """Those at these indices (int64), in this order; raises IndexError for one that is not there."""
        # rows as a whole take a third of the time of indexing
        inputs, targets = (tensor.index_select(0, chosen) for tensor in (self.inputs, self.targets))
        return Samples(inputs, targets, self.vocabulary)


MOST_CLASSES = 1 << 20  # where the targets alone tell how many there are: a head of more is a mistake


def check(samples: Samples, where: str, classes: int = MOST_CLASSES) -> None:
    """Refuse what no network could be measured on. Raises DataError with every problem found."""
    inputs, targets, text = samples.inputs, samples.targets, samples.vocabulary is not None
    problems = []
    if inputs.dtype not in ((torch.int64,) if text else (torch.uint8, torch.float32)):
        problems.append(f"inputs are {inputs.dtype}; expected {'int64' if text else 'uint8 or float32'}")
    if targets.dtype != torch.int64 or targets.ndim != 1 + text:
        expected = "int64 (N, T)" if text else "int64 (N,)"
        problems.append(f"targets are {targets.dtype} of shape {tuple(targets.shape)}; expected {expected}")
    if len(inputs) != len(targets):
        problems.append(f"{len(inputs)} inputs and {len(targets)} targets")
    if not len(targets):
        problems.append("no samples")
    elif not problems and not 0 <= targets.min() <= targets.max() < classes:
        worst = int(targets.min() if targets.min() < 0 else targets.max())
        problems.append(f"a target is {worst}; expected class numbers, 0…{classes - 1}")
    if not math.prod(inputs.shape[1:]):
        problems.append(f"inputs have the shape {tuple(inputs.shape)}, so there is nothing in them")
    if inputs.dtype.is_floating_point and not torch.isfinite(inputs).all():
        problems.append("inputs hold NaN or infinite values")
    if problems:
        raise DataError(f"{where} cannot be used", problems=problems)
