"""What a straight-through search may be told, the memory that it takes, and what moves its dummies.

Adam, or SGD with momentum, by PyTorch's functions, not by its classes: the first of them that is made imports
the whole compiler, a second or more in which nothing is searched. The numbers are theirs, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ...errors import UsageError
from ...registry import option
from .. import INITS, Declared

OPTIMIZERS = ("adam", "sgd")
PRECISIONS = ("fp32", "bf16")
HELD_OUT = 2_000  # samples at most, by which a search chooses among where it stood
RATES = {"adam": 1e-3, "sgd": 1e-2}
ADAM = partial(adam, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False)
SGD = partial(sgd, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False)
KEPT = {"adam": ("step", "exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


@dataclass(frozen=True)
class Training(Declared):
    """`optimizer` (adam, or sgd with momentum 0.9) and `learning_rate` (1e-3, or 1e-2) move the dummies.

    `share` of all permutations are solved anew in each step: 1 is all of them, and None as many as take
    less than a fifth of a step. `init` is where permutations start: wm, am, identity; None is am with groups
    and for networks with running statistics, where units can be seen, else wm. `precision` is that of the
    products in forward and backward passes. `limit`: samples an epoch.
    """

    epochs: int = option(8, "Passes over the training samples.", min=1)
    optimizer: str = option("adam", "What moves the dummies.", choices=OPTIMIZERS)
    learning_rate: float | None = option(
        None, "Its learning rate (adam 1e-3, sgd 1e-2).", flag="--lr", metavar="RATE"
    )
    share: float | None = option(
        None,
        "Permutations that are solved anew in each step; else as many as take less than a fifth of it.",
        metavar="0–1",
    )
    init: str | None = option(
        None,
        "Where permutations start (with BatchNorm or --groups all am, else wm); FILE as `rebasin align` "
        "wrote it.",
        metavar="wm|am|identity|FILE",
        choices=INITS,
        kind="start",
    )
    precision: str = option("fp32", "Of forward and backward passes.", choices=PRECISIONS)
    limit: int | None = option(None, "Train on this many samples an epoch.", min=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise UsageError(f"a learning rate of {self.learning_rate:g} makes no sense", hint="Try 1e-3.")
        if self.share is not None and not 0 < self.share <= 1:
            raise UsageError(f"{self.share:g} is no share of the permutations", hint="Give one in 0–1.")


def memory(models: int, parameters: int, options: Training) -> dict[str, int]:
    """Bytes that a search holds beside the files: every model, the dummies, their optimizers, one network."""
    row, moments = 4 * parameters, 2 if options.optimizer == "adam" else 1
    network = 4 * row  # as it was given, the copy that is trained, its gradient, a dummy's share of that
    return {
        "models": models * row,
        "dummies": (models - 1) * row,
        "optimizers": (models - 1) * moments * row,
        "network": network,
    }


class Optimizer:
    """Moves one row of numbers, `dummy`, in place; `state` is all that it keeps between steps, by name."""

    def __init__(self, dummy: torch.Tensor, options: Training, scale: float):
        """`scale` multiplies the learning rate."""
        self.dummy, self.kind = dummy, options.optimizer
        self.rate = scale * (options.learning_rate or RATES[options.optimizer])
        self.state: dict[str, torch.Tensor] = {}

    def step(self, gradient: torch.Tensor) -> None:
        with torch.no_grad():
            self._adam(gradient) if self.kind == "adam" else self._sgd(gradient)

    def _adam(self, gradient: torch.Tensor) -> None:
        if not self.state:
            zeros = (torch.tensor(0.0), torch.zeros_like(self.dummy), torch.zeros_like(self.dummy))
            self.state = dict(zip(KEPT["adam"], zeros, strict=True))
        step, first, second = (self.state[name] for name in KEPT["adam"])  # the step is on the CPU
        ADAM([self.dummy], [gradient], [first], [second], [], [step], lr=self.rate)

    def _sgd(self, gradient: torch.Tensor) -> None:
        (name,) = KEPT["sgd"]
        # at first none: the function puts a copy of the gradient there
        buffers: list[torch.Tensor | None] = [self.state.get(name)]
        SGD([self.dummy], [gradient], buffers, lr=self.rate)
        self.state = dict(zip(KEPT["sgd"], (it for it in buffers if it is not None), strict=True))

    def resume(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on from a copy of this state, empty before the first step. Raises KeyError for what it lacks."""
        self.state = {
            name: saved[name].clone() if name == "step" else saved[name].to(self.dummy.device, copy=True)
            for name in KEPT[self.kind]
            if saved
        }
