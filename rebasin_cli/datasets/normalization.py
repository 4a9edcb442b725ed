"""What is subtracted from inputs and what they are divided by, and the ways of it that are usual."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UsageError
from ..registry.options import real


@dataclass(frozen=True)
class Normalization:
    """What is subtracted and divided by, per channel, once bytes have been divided by 255.

    One number serves every channel. `str()` and `parse` are inverses.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __str__(self) -> str:
        return "/".join(",".join(str(value) for value in values) for values in (self.mean, self.std))

    @staticmethod
    def parse(text: str, own: Normalization | None) -> Normalization:
        """One of `USUAL` by its name, `dataset` (the data set's `own`), or `MEAN,…/STD,…`.

        Raises UsageError, also for `dataset` where nobody says what its own are.
        """
        if text in USUAL:
            return USUAL[text]
        if text == "dataset":
            if own is None:
                raise UsageError("the data set does not say its own mean and deviation", hint=HOW)
            return own
        try:
            mean, std = (tuple(real(value) for value in part.split(",")) for part in text.split("/"))
        except ValueError:
            mean, std = (), ()
        if not mean or len(mean) != len(std) or not all(map(math.isfinite, mean + std)) or min(std) <= 0:
            raise UsageError(f"{text!r} is no normalization", hint=HOW)
        return Normalization(mean, std)

    def apply(self, inputs: Tensor) -> Tensor:
        """Bytes or floats (N, C, …) to normalised float32. Raises UsageError if the channels differ."""
        values = inputs.float().div(255) if inputs.dtype == torch.uint8 else inputs.float()
        if self == UNIT:
            return values
        if values.ndim < 2 or len(self.mean) not in (1, values.shape[1]):
            raise UsageError(
                f"normalization {self} has {len(self.mean)} channels, the data {tuple(values.shape[1:])}"
            )
        shape = (1, -1) + (1,) * (values.ndim - 2)
        return (values - torch.tensor(self.mean).view(shape)) / torch.tensor(self.std).view(shape)


UNIT = Normalization()
# What programs that train networks do most often, by names that `--normalize` takes.
USUAL = {
    "unit": UNIT,
    "half": Normalization((0.5,), (0.5,)),
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "raw": Normalization((0.0,), (1 / 255,)),
}
HOW = (
    "Write unit (0…1), half (-1…1), raw (0…255), imagenet, dataset (the data set's own mean and deviation), "
    "or one mean and one positive standard deviation a channel: 0.49,0.48,0.45/0.25,0.24,0.26"
)


def measured(inputs: Tensor) -> Normalization:
    """Mean and deviation of each channel of these inputs, to three digits; (N, features) as one channel."""
    values = UNIT.apply(inputs)
    channels = values.double().transpose(0, 1).flatten(1) if values.ndim > 2 else values.double().view(1, -1)
    mean, std = channels.mean(1).tolist(), channels.std(1, correction=0).tolist()
    return Normalization(*(tuple(float(f"{value:.3g}") for value in values) for values in (mean, std)))
