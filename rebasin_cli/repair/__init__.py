"""What repairs a merged model; one way a file, and the choice between them (`repair_steps`).

`reset` measures BatchNorm's running statistics again. `repair`, `rescale` and `reshift` give every channel
the mean and spread that it should have between its endpoints, folded into the weights. `refit` fits
every layer to what the endpoints compute there, by least squares, and `distill` trains all of them after
that towards what the endpoints give in the end. `calibrated_biases` needs no data.
`temperature` changes no weights: one number for the logits.
"""

from __future__ import annotations

from .batchnorm import reset
from .biases import calibrated_biases
from .calibration import temperature
from .channels import MATCHES, Repaired, layers_touched, renormalize, reset_norms
from .distillation import distill
from .refits import plan_refit, refit
from .repair_steps import REPAIRS, Outcome, Repairs, open_to_choice, repair_merged

__all__ = [
    "MATCHES",
    "Outcome",
    "REPAIRS",
    "Repaired",
    "Repairs",
    "calibrated_biases",
    "distill",
    "layers_touched",
    "open_to_choice",
    "plan_refit",
    "refit",
    "renormalize",
    "repair_merged",
    "reset",
    "reset_norms",
    "temperature",
]
