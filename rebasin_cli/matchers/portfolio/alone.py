"""The first model by itself, trained towards what all models say in the mean: no merge, and what one adds to.

It sees the same samples and targets as the distillation of the best merge, and as many of them, so what it
lacks beside that is what the weights of the others are worth. A merge was asked for, so it is taken only
where it surely costs less, and only on samples that no model was trained on is that known: those of its own
training it knows by heart, and figures on these are in its favour (docs/decisions/0097).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from ...repair.choosing import Measured, gained
from ...symmetry import permutation
from ...symmetry.elements import Elements
from .. import MatchResult, Problem
from .clock import Clock
from .mending import LAST, Mending
from .trial import Trial

SURE = 2.0  # standard errors of the difference, by which it has to cost less than the best merge


class Trials(Protocol):
    """Candidates on one problem: those that are done, and how another one is measured."""

    problem: Problem
    clock: Clock
    mending: Mending
    done: list[Trial]

    def measure(self, trial: Trial, models: Sequence[Any], how: str, limit: float, ends: float) -> None: ...


def surely(merge: Measured, one: Measured) -> bool:
    """Whether one model alone is better than a merge by more than chance."""
    gain, error = gained(merge, one)
    return gain > (0.0 if math.isnan(error) else SURE * error)


def taken(trials: Trials, merge: Measured) -> tuple[Trial, str] | None:
    """The trial that is taken in place of the best merge, and its repair; None where that stays."""
    for trial in trials.done:
        if trial.alone and any(surely(merge, it) for it, _ in trial.merges.values()):
            return trial, LAST
    return None


def room(trials: Trials) -> float:
    """Half of the seconds that are left, where two whole distillations fit into them; else 0."""
    half = 0.5 * trials.clock.left
    return half if _open(trials) and _seconds(trials) < half else 0.0


def try_(trials: Trials, seconds: float) -> None:
    """Distil the first model in so many seconds; the trial, or why there is none, is added to the others."""
    if not _open(trials):
        return
    several = len(trials.problem.models) > 2
    trial = Trial(f"A, distilled towards {'all' if several else 'both'}", alone=True)
    trials.done.append(trial)
    if not seconds:
        trial.why = (
            f"takes about {trials.clock.told(_seconds(trials))} beside the merge's distillation, too long"
        )
    else:
        trials.measure(trial, trials.problem.models, LAST, seconds, math.inf)
        _whole(trials, trial)


def _open(trials: Trials) -> bool:
    """Whether it may be taken, and was not tried yet."""
    problem = trials.problem
    return problem.alone and problem.held is not None and not any(trial.alone for trial in trials.done)


def _seconds(trials: Trials) -> float:
    return trials.mending.seconds(LAST, 0.0, 1.0)


def _whole(trials: Trials, trial: Trial) -> None:
    """All tensors of the model as it was distilled; none where it came no nearer to the others."""
    done, first = trial.distilled, trials.problem.models[0]
    if done is None or not done.tensors:
        trial.merges.clear()
        trial.why = trial.lacking.pop(LAST, "") or "training brought it no nearer to the mean answer"
        return
    trial.distilled = replace(done, tensors={name: done.tensors.get(name, first[name]) for name in first})
    still = Elements(permutation.identity(trials.problem.fitted.words))
    before = trials.done[0].found.objective_before
    others = (still,) * (len(trials.problem.models) - 1)
    trial.result = MatchResult(others, before, before, 0, 0, True)
