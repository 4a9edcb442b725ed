"""What PAM may be told, and the memory that it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import UsageError, unknown
from ...registry import option
from .. import INITS
from .projecting import PROJECTIONS

CHOICES = ("loss", "penalised")


@dataclass(frozen=True)
class Descent:
    """`epochs` of descent from `init` at `learning_rate`, `projections` rounds of `projection` a step.

    `nu`: the pull to where the search began is ‖P − P⁰‖²/(2ν). Of each matrix `terms` permutations are taken
    by Birkhoff's theorem, `samples` draws of all words scored on `scored` training samples, and the best by
    its `loss` is taken, or by the loss with that pull (penalised): both readings of equation 51.
    """

    epochs: int = option(20, "Passes over the training samples.", min=1)
    learning_rate: float | None = option(
        None, "Its learning rate (0.05 with convolutions, else 0.25).", flag="--lr", metavar="RATE"
    )
    init: str | None = option(
        None,
        "Where permutations start (with BatchNorm am, else wm); FILE as `rebasin align` wrote it.",
        metavar="wm|am|identity|FILE",
        choices=INITS,
        kind="start",
    )
    nu: float = option(1e3, "The pull to where the search began is ‖P − P⁰‖²/(2ν).")
    projection: str = option(
        "alternating", "How matrices are projected after each step.", choices=PROJECTIONS
    )
    projections: int = option(20, "Rounds of a projection.", min=1, max=10_000)
    terms: int = option(10, "Permutations that each matrix is taken apart into.", min=1)
    samples: int = option(32, "Draws of permutations that are scored.", min=0, max=100_000)
    scored: int = option(2_000, "Training samples that they are scored on.", min=1)
    choose: str = option(
        "loss", "The best permutation by its loss, or by that with the pull.", choices=CHOICES
    )
    limit: int | None = option(None, "Train on this many samples an epoch.", min=1)

    def __post_init__(self) -> None:
        named = [("projection", PROJECTIONS), ("choose", CHOICES)]
        for name, known in named if self.init is None else [*named, ("init", INITS)]:
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        for name, least in (("epochs", 1), ("projections", 1), ("terms", 1), ("samples", 0), ("scored", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}; expected {least} or more")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"a limit of {self.limit} samples leaves nothing", hint="Give 1 or more.")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise UsageError(f"a learning rate of {self.learning_rate:g} makes no sense", hint="Try 0.25.")
        if not 0 < self.nu < math.inf:
            raise UsageError(
                f"nu is {self.nu:g}; expected a positive number", hint="The published one is 1000."
            )


def memory(models: int, parameters: int, options: Descent) -> dict[str, int]:
    """Bytes that a search holds beside the files; its matrices are as large as the similarities."""
    row = 4 * parameters
    return {
        "models": 2 * row,
        "moved": 3 * row,  # the second model as it is given, as it stands, and its gradient
        "network": 4 * row,
        "matrices": 0,
    }
