"""What the training loop trains: how it begins a step, loses, moves, and what it is told."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

NEAR, HALF = 1e-3, 3e-2  # of a gradient: what its sums round, in float32 and in bfloat16

UNDER_ATTACK = "an attack goes up the loss of the whole batch"


class Learner:
    """What is trained, a step at a time. Two methods make one, `loss` and `move`; the others may stay.

    `network` is what it runs, of whose parameters the loop takes the gradients.

    `done` steps were taken, those before an interruption too: the loop passes over their batches. `rate` is
    the learning rate, which an error speaks of. The loss is looked at every so many steps, where `every` is
    0 never: on an accelerator each look waits. The loop ends with its passes, or where it is `over`.
    """

    network: nn.Module
    done = 0
    rate = 0.0
    every = 1
    alone = ""  # why a batch is of one piece, where it is
    own = False  # whether the loss is a user's, who may weigh some targets that few batches have
    near = NEAR

    def over(self) -> bool:
        """Whether no more steps are wanted; asked before the first and after each."""
        return False

    def begin_step(self, inputs: Any, targets: Any) -> None:
        """A step, of this batch: what it draws, and no gradient. It may begin twice."""

    def loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        """The mean loss of the batch, or of some samples of it, (), whose gradient the loop takes."""
        raise NotImplementedError

    def counted(self, targets: Any, size: int) -> int:
        """How much the loss of so many samples is the mean of; 0 where it is not known, or of nothing."""
        return size

    @property
    def slopes(self) -> torch.Tensor | None:
        """The gradients of all parameters in one row, where they lie in one."""
        return None

    def move(self) -> None:
        """By the gradient; no signal interrupts it."""
        raise NotImplementedError

    def tell(self, loss: float) -> None:
        """Of a step that was taken, before any signal is answered; the loss is NaN where nobody looks."""

    def within(self, epoch: int) -> AbstractContextManager[Any]:
        """What holds during a pass, counted from 0."""
        return nullcontext()

    def after(self, step: int, mean: float) -> None:
        """Of a pass so many steps are done, from 1; the mean loss of its samples when it was looked at."""

    def ended(self, epoch: int, mean: float) -> None:
        """A pass is done; the mean loss of its samples, NaN where all of it was before an interruption."""
