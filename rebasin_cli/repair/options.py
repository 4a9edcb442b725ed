"""The options that repairs have."""

from __future__ import annotations

import math

from ..errors import UsageError

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
