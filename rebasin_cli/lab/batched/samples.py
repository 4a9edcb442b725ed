"""Samples for stacks: as float32, flattened or as images, all of a split or so many of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...datasets import Data, open_data
from ...errors import UsageError


class Samples(NamedTuple):
    inputs: Tensor  # (samples, d), or images (samples, channels, height, width)
    targets: Tensor  # (samples,)

    def some(self, count: int, generator: torch.Generator) -> Samples:
        """So many of them, drawn; all for 0, and where there are no more."""
        if not 0 < count < len(self.targets):
            return self
        at = torch.randperm(len(self.targets), generator=generator)[:count]
        return Samples(self.inputs[at], self.targets[at])


def opened(
    data: str, root: Path | None, *, limit: int = 0, images: bool = False
) -> tuple[Samples, Samples, int]:
    """Training samples (at most `limit` of them, 0: all), test samples, and the number of classes.

    Raises what opening the data set does, and UsageError for a user's loader, for text, or for samples that
    are no `images` where these are asked for.
    """
    found = []
    for split in ("train", "test"):
        opened = open_data(data, split, root=root, limit=limit or None if split == "train" else None)
        if not isinstance(opened, Data):
            raise UsageError(f"{data}: the lab needs the samples of a data set, not batches of a loader")
        if opened.normalization is None or opened.classes is None:
            raise UsageError(f"{data}: text, and these networks classify images", hint="rebasin list data")
        inputs = opened.normalization.apply(opened.source.inputs)
        if images and inputs.dim() != 4:
            shape = "×".join(map(str, inputs.shape[1:]))
            raise UsageError(f"{data}: its samples are {shape}, images are channels×height×width")
        inputs = inputs if images else inputs.flatten(1)
        found.append((Samples(inputs, opened.source.targets), opened.classes))
    (train, _), (test, classes) = found
    return train, test, classes


def noisy(samples: Samples, spread: float, generator: torch.Generator) -> Samples:
    """The same with Gaussian noise on the inputs; as they are for a spread of 0."""
    if not spread:
        return samples
    noise = torch.randn(samples.inputs.shape, generator=generator)
    return samples._replace(inputs=samples.inputs + spread * noise)


def layers(train: Samples, width: int, depth: int, classes: int) -> list[int]:
    """The sizes of a network's layers, inputs and classes included."""
    return [train.inputs.shape[1], *[width] * depth, classes]


def halves(count: int, samples: int, share: float, generator: torch.Generator) -> Tensor:
    """For each of `count` networks the numbers of its own random share of the samples."""
    return torch.rand(count, samples, generator=generator).argsort(1)[:, : round(share * samples)]
