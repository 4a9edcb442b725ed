"""Mend what merging breaks; one way a file.

`reset` measures BatchNorm's running statistics again. `repair`, `rescale` and `reshift` give every channel
the mean and spread that it should have between its endpoints, folded into the weights. `calibrated_biases`
needs no data. `temperature` changes no weights: one number for the logits.
"""

from __future__ import annotations

from .batchnorm import reset
from .biases import calibrated_biases
from .calibration import temperature
from .channels import MATCHES, Repaired, layers_touched, renormalize, repair, rescale, reset_norms, reshift

# What --repair takes. Those of MATCHES change weights and need samples, "bias" changes biases and needs none.
REPAIRS = ("none", "reset", *MATCHES, "bias")

__all__ = [
    "MATCHES",
    "REPAIRS",
    "Repaired",
    "calibrated_biases",
    "layers_touched",
    "renormalize",
    "repair",
    "rescale",
    "reset",
    "reset_norms",
    "reshift",
    "temperature",
]
