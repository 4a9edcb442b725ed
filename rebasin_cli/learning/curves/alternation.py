"""PAM as it is iterated: a permutation that lowers the loss of the curve, a curve for it, and again.

The curve (1−t) A + t PB + 2t(1−t) θ̃ has two things to learn, P and θ̃. Each is moved in turn while the other
stays, and pulled to where it stood: ‖P − Pᵏ‖²/(2ν) and ‖φ − φᵏ‖²/(2ν) are added. Rounds end where one lowers
the loss by no more than a bound; one that makes it worse is not taken.

Tatro et al. 2020, Optimizing mode connectivity via neuron alignment, appendix E.1, E.3, equations 34, 35, 46.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...matchers import Problem, State
from ...matchers.accounts import Relaxed
from ...matchers.relaxed.search import Descent, line_loss, search
from ...runtime.seeds import derive
from ...symmetry.elements import Elements, compose, identity
from ...symmetry.permutation import permuted
from ...types import Tensors
from .training import Trained, Training, train

Least = Callable[[Tensors, Tensors, Tensors], float]  # of both ends and the control point: a fall, in nats


@dataclass(frozen=True)
class Round:
    """The mean `loss` of the curve after it (nats), what it fell by, the least fall to go on, units moved."""

    loss: float
    fall: float
    least: float
    moved: int


@dataclass(frozen=True)
class Alternated:
    """Where it ended: what aligns B, the control point, the rounds, and whether the rule ended them."""

    element: Elements
    trained: Trained
    rounds: tuple[Round, ...]
    converged: bool


def alternate(
    problem: Problem,
    element: Elements,
    trained: Trained,
    options: Training,
    descent: Descent,
    *,
    rounds: int,
    least: Least,
) -> Alternated:
    """Up to so many more rounds after a first one, which ended with `element` and a curve that is `trained`.

    `problem` has B as it stands, aligned by `element`. A loss is the mean along the curve on the samples that
    permutations are scored on, so the losses of rounds may be compared; it never rises. Raises as
    `relaxed.search` and `training.train` do.
    """
    done: list[Round] = []
    a, b = problem.models
    bend = _bend(a, b, trained.controls[0])
    still = identity(problem.fitted)
    loss = line_loss(problem, descent, still.permutations, bend)
    for number in range(2, rounds + 2):
        task = replace(problem, models=(a, b), seed=derive(problem.seed, f"round {number}"))
        found = search(replace(task, start=State((still,)), progress=None), descent, bend)
        moved = permuted(b, problem.fitted, found.permutations[0])
        control = _control(a, moved, trained.controls[0], bend)
        task = replace(task, models=(a, moved), start=None)
        whole = compose(element, found.elements[0], problem.fitted)
        again = train(task, whole, options, controls=[control], nu=descent.nu)
        bent = _bend(a, moved, again.controls[0])
        now = line_loss(task, descent, still.permutations, bent)
        account = found.account.rounding if isinstance(found.account, Relaxed) else None
        enough = least(a, moved, again.controls[0])
        done.append(Round(now, loss - now, enough, account.units_moved if account else 0))
        if now < loss:
            steps, losses = trained.steps + again.steps, trained.losses + again.losses
            element, trained = whole, Trained(again.controls, steps, losses)
            b, bend, loss = moved, bent, now
        if done[-1].fall <= enough:
            return Alternated(element, trained, tuple(done), True)
    return Alternated(element, trained, tuple(done), False)


def _bend(a: Tensors, b: Tensors, control: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """θ̃: how far the control point is from the middle; 0 where it has no tensor."""
    return {
        name: control[name].float() - (a[name].float() + b[name].float()) / 2
        if name in control
        else torch.zeros_like(a[name])
        for name in a
    }


def _control(
    a: Tensors, b: Tensors, control: Mapping[str, Tensor], bend: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The control point as far from the middle as before, for another B."""
    return {name: (a[name].float() + b[name].float()) / 2 + bend[name] for name in control}
