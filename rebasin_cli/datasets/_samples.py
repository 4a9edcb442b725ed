"""One split of a data set, in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

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
