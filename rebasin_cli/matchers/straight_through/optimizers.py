"""What moves a dummy: Adam, or SGD with momentum, by PyTorch's functions.

Not by its classes: the first of them that is made imports the whole compiler, a second or more in which
nothing is searched. The numbers are theirs, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from .training import RATES, Training

ADAM = partial(adam, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False)
SGD = partial(sgd, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False)
KEPT = {"adam": ("step", "exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


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
