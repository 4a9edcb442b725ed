"""Train the control points of a curve: at every batch another point of it, drawn evenly, takes a step.

Minimises E_{t ~ U(0,1)} L(r(t)) over the control points; the ends stay as they are. The gradient of a control
point is its share at t times that of the loss at r(t). Weight decay is of the weights that are used, r(t).
Norms use the statistics of the batch, as in training.

Tatro et al. 2020, Optimizing mode connectivity via neuron alignment, equation 5 and section 4 (NeurIPS 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ...averages.means import interpolate
from ...checkpoints.tensors import replaced
from ...datasets.batches import to_device
from ...errors import NetworkError, UsageError, unknown
from ...matchers import Problem, State
from ...matchers.straight_through.mixture import AtMixture, Mixture
from ...networks.attacks import Attack, Attacker
from ...runtime.seeds import generator, uniform
from ...symmetry.elements import Elements
from ...types import Tensors
from ..learner import UNDER_ATTACK
from ..loop import Passes, learn
from ..recipe import cosine, halving, has_convolutions
from .curve import check_kind, shares

SCHEDULES = ("halving", "cosine", "constant")
MOMENTUM = 0.9
RATES = {True: 1e-2, False: 5e-2}  # with convolutions, without


@dataclass(frozen=True)
class Training:
    """`bends` control points of a curve of this `kind`, trained by SGD with Nesterov's momentum 0.9.

    `learning_rate` None: 0.01 for networks with convolutions (the paper's for CIFAR-10), else 0.05. "halving"
    halves it twelve times over all epochs. `augment` None: for networks with convolutions, where the data set
    says how. `rotate`: the degrees of the data, which turns its images. `limit`: samples an epoch. `attack`:
    the images of every batch are attacked at the point that is trained (`networks.attacks`).
    """

    kind: str = "bezier"
    bends: int = 1
    epochs: int = 60
    learning_rate: float | None = None
    weight_decay: float = 0.0
    schedule: str = "halving"
    augment: bool | None = None
    rotate: float | None = None
    limit: int | None = None
    attack: str | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind)
        if self.attack is not None:
            object.__setattr__(self, "attack", str(Attack.parse(self.attack)))  # one way to say it
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        for name, good in (
            ("bends", self.bends >= 1),
            ("epochs", self.epochs >= 1),
            ("learning_rate", self.learning_rate is None or 0 < self.learning_rate < math.inf),
            ("weight_decay", 0 <= self.weight_decay < math.inf),
            ("rotate", 0 <= (self.rotate or 0) <= 180),
        ):
            if not good:
                raise UsageError(f"{name} is {getattr(self, name)}: that trains no curve")


@dataclass(frozen=True)
class Trained:
    """The control points by parameter names, the steps taken, and the loss of every epoch (nats)."""

    controls: tuple[dict[str, torch.Tensor], ...]
    steps: int
    losses: tuple[float, ...]


def train(
    problem: Problem,
    element: Elements,
    options: Training,
    *,
    controls: Sequence[Tensors] = (),
    nu: float | None = None,
) -> Trained:
    """The trained control points between the two models of `problem`, the second of them aligned.

    Training begins on the straight line, or at `controls`, to which `nu` pulls: ‖φ − φ⁰‖²/(2ν) is added to
    the loss. `element` is what aligned it: it goes into the states that are reported. A state that was
    reported goes on to the same bits. Raises UsageError, DataError, and NetworkError when the loss is no
    longer a number.
    """
    return Search(problem, element, options, controls, nu).run()


class Search(AtMixture):
    """A training on its way: ends, control points and their momenta as rows of numbers.

    Of a network of a millisecond a step, what is done beside its passes counts. So control points are
    moved as whole rows.
    """

    def __init__(
        self,
        problem: Problem,
        element: Elements,
        options: Training,
        controls: Sequence[Tensors] = (),
        nu: float | None = None,
    ):
        self.problem, self.element, self.options, self.nu = problem, element, options, nu
        self.mixture = Mixture(_with_controls(problem, options.bends, controls), "fp32", turned=False)
        self.controls = self.mixture.rows[1:-1]
        self.anchors = [control.clone() for control in self.controls] if nu else self.controls
        self.momenta = [torch.zeros_like(control) for control in self.controls]
        self.kept = problem.fitted.ignored & self.mixture.flat.shapes.keys()
        convolutional = has_convolutions(self.mixture.network)
        self.rate = options.learning_rate or RATES[convolutional]
        augment = convolutional if options.augment is None else options.augment
        data, least = problem.given_data, self.mixture.normed + 1
        self.passes = Passes(data, problem.seed, options.epochs, options.limit, least, augment)
        self.last: tuple[Any, Any] | None = None
        self.losses: list[float] = []
        self.attacker = Attacker(Attack.parse(options.attack), problem.data) if options.attack else None
        self.alone = UNDER_ATTACK if options.attack else ""
        if problem.start is not None:
            self._go_on(problem.start)

    def run(self) -> Trained:
        learn(self, self.passes, self.problem.ranks)
        self._check_end()
        rows = [self.mixture.flat.views(row) for row in self.controls]
        controls = tuple(
            {n: view.detach().cpu().clone() for n, view in row.items() if n not in self.kept} for row in rows
        )
        return Trained(controls, self.done, tuple(self.losses))

    def _check_end(self) -> None:
        """Raise NetworkError where the last step, whose loss nobody has seen, broke the curve."""
        inputs, targets = self.last or next(self.passes.batches(0))
        self.mixture.mix(shares(self.options.kind, 0.5, len(self.mixture.rows)))
        with torch.no_grad():
            loss = self.mixture.loss(inputs, to_device(targets, self.mixture.device), self.done).item()
        if not math.isfinite(loss):
            raise NetworkError(
                f"the loss is {loss} in the middle of the curve after the last step",
                hint="Try a smaller --lr",
            )

    def within(self, epoch: int) -> AbstractContextManager[None]:
        share, options = epoch / self.options.epochs, self.options
        shape = {"halving": halving, "cosine": cosine}.get(options.schedule)
        self.now = self.rate * (shape(share) if shape else 1.0)
        return nullcontext()

    def begin_step(self, inputs: Any, targets: Any) -> None:
        """At one point of the curve."""
        self.last = inputs, targets
        self.t = uniform(self.problem.seed, f"point {self.done}")
        self.weights = shares(self.options.kind, self.t, len(self.mixture.rows))
        self.mixture.mix(self.weights)

    def loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        targets = to_device(targets, self.mixture.device)
        if self.attacker is not None:
            inputs = to_device(inputs, self.mixture.device)
            rng = generator(self.problem.seed, f"attack {self.done}")
            inputs = self.attacker(inputs, targets, partial(self.mixture.loss, number=self.done), rng)
        return self.mixture.loss(inputs, targets, self.done)

    def move(self) -> None:
        """The control points, by their shares of the gradient."""
        if self.options.weight_decay:
            self.mixture.add_decay(self.options.weight_decay)
        gradient = self.mixture.gradient()
        if self.kept:
            views = self.mixture.flat.views(gradient)
            for name in self.kept:
                views[name].zero_()
        for control, momentum, weight in zip(self.controls, self.momenta, self.weights[1:-1], strict=True):
            _descend(control, momentum, gradient, weight, self.now)
        if self.nu:
            for control, anchor in zip(self.controls, self.anchors, strict=True):
                pull = self.now / self.nu
                control.add_(anchor, alpha=pull).div_(1 + pull)

    def ended(self, epoch: int, mean: float) -> None:
        if not math.isnan(mean):
            self.losses.append(mean)

    def tell(self, loss: float) -> None:
        if self.problem.progress is None:
            return
        notes = {"loss": loss, "t": self.t, **self.passes.notes}
        tensors = {f"control.{k}": row for k, row in enumerate(self.controls)}
        tensors |= {f"momentum.{k}": row for k, row in enumerate(self.momenta)}
        self.problem.report(State((self.element,), self.done, -loss, notes, tensors))

    def _go_on(self, start: State) -> None:
        self.done = start.sweep
        for k, (control, momentum) in enumerate(zip(self.controls, self.momenta, strict=True)):
            control.copy_(start.tensors[f"control.{k}"])
            momentum.copy_(start.tensors[f"momentum.{k}"])


def _descend(
    control: torch.Tensor, momentum: torch.Tensor, gradient: torch.Tensor, weight: float, rate: float
) -> None:
    """A step of SGD with Nesterov's momentum by `weight` times the gradient."""
    momentum.mul_(MOMENTUM).add_(gradient, alpha=weight)
    control.add_(gradient, alpha=-rate * weight).add_(momentum, alpha=-rate * MOMENTUM)


def _with_controls(problem: Problem, bends: int, controls: Sequence[Tensors] = ()) -> Problem:
    """The problem with these control points, or some on the straight line between its two models.

    Tensors that the spec ignores are the first one's throughout.
    """
    a, b = problem.models
    b = replaced(b, {name: a[name] for name in problem.fitted.ignored})
    line = [interpolate(a, b, k / (bends + 1)) for k in range(1, bends + 1)]
    between = [replaced(at, its) for at, its in zip(line, controls or [{}] * bends, strict=True)]
    return replace(problem, models=(a, *between, b))
