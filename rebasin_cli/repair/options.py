"""The options that repairs have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UsageError
from ..registry import option

RIDGE = 0.01  # of a refit
REFIT_SAMPLES, REFIT_BATCH = 1_000, 250  # more samples add next to nothing
DISTILL_SAMPLES, EPOCHS, STEP, STEPS = 10_000, 4, 50, 200  # of a distillation; samples a step; at least
MOST_DISTILLED = 30_000  # samples where there is time for so many; beyond, little is gained
SAMPLES = {
    "refit": REFIT_SAMPLES,
    "distill": DISTILL_SAMPLES,
}  # of repairs that fit weights, unless told otherwise


def check_ridge(ridge: float) -> None:
    if not 0 <= ridge < math.inf:
        raise UsageError(f"a ridge of {ridge:g} holds nothing together", hint=f"Give 0 or more: {RIDGE:g}")


def epochs_of(samples: int) -> int:
    """How often a distillation goes through its samples; few of them more often."""
    return max(EPOCHS, math.ceil(STEPS * STEP / max(1, samples)))


@dataclass(frozen=True)
class Options:
    """`new_bias`: layers without a bias may get one by "repair" and "reshift". `ridge`: of "refit", and
    of the one that "distill" begins with."""

    new_bias: bool = option(
        False,
        "Let repair and reshift give layers a bias that have none; the output then has more tensors.",
        flag="--allow-new-bias",
    )
    ridge: float = option(
        RIDGE,
        "Keep a refit this close to the averaged weights: a share of the mean square of a layer's inputs.",
        min=0,
        max=1e6,
    )
