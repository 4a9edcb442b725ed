"""Weight matching: align the second model to the first by comparing weights alone.

Hold all permutations but one, sum the inner products of matching slices into a similarity of shape
(n, n), reference unit × model unit, and solve one linear assignment; go round until nothing improves.
The objective never falls; the optimum is local and depends on the seed, which orders the layers.

A permutation whose neighbours did not change since its last solve is not solved again. One that sits on
two axes of a tensor has a quadratic objective: its assignment is solved on the gradient, and taken only
if the true objective rises.

Ainsworth et al. 2022, section 3.2 and Algorithm 1, arXiv:2209.04836.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import assignment, permutation
from ..errors import UsageError
from ..randomness import generator
from . import MatchResult, Problem, State
from ._similarity import Pair

NEEDS = frozenset()
MANY = False
DECLARES = frozenset({"identity", "planted", "monotone"})

DAMPING = (0.5, 0.25)  # steps towards the assignment that are tried where the whole one would lose


@dataclass(frozen=True)
class Options:
    """`tolerance`: a gain below this share of the assignment's own size counts as none."""

    max_sweeps: int = 100
    tolerance: float = 1e-9


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for the one model beside the reference.

    Raises UsageError unless there are exactly two models. KeyboardInterrupt passes through; the last
    State reported is where `problem.start` may go on.
    """
    if len(problem.models) != 2:
        raise UsageError(
            f"wm matches two models, not {len(problem.models)}",
            hint="For many models: rebasin merge --method merge-many, which matches them all",
        )
    reference, model = problem.models
    fitted = problem.fitted
    pair = Pair(reference, model, fitted)
    start = problem.start or State((permutation.identity(fitted.words),))
    current = {word: perm.clone() for word, perm in start.permutations[0].items()}
    with pair.computing():
        before = pair.objective(permutation.identity(fitted.words))
        now = pair.objective(current)
        words = sorted(word for word, size in fitted.words.items() if size > 1)
        stale, solves, sweep = set(words), 0, start.sweep
        while stale and sweep < options.max_sweeps:
            order = torch.randperm(len(words), generator=generator(problem.seed, f"wm sweep {sweep}"))
            for word in (words[k] for k in order.tolist()):
                if word not in stale:
                    continue
                gain, perm = _improve(pair, word, current, options.tolerance)
                solves += 1
                stale.discard(word)
                if gain > 0:
                    now += gain
                    current[word] = perm
                    stale |= pair.neighbours[word] & set(words)
                    if pair.double[word]:
                        stale.add(word)  # its own gradient has moved
            sweep += 1
            problem.report(State((dict(current),), sweep, now))
        after = pair.objective(current)
    return MatchResult((current,), before, after, sweep, solves, not stale)


def _improve(pair: Pair, word: str, current: dict, tolerance: float) -> tuple[float, torch.Tensor]:
    """The best assignment for one word with the others held, and what it gains; 0 where nothing does."""
    old = current[word]
    similarity = pair.matrix(word, current)
    if not pair.double[word]:
        return _linear_gain(similarity, old, tolerance)
    gradient = pair.matrix(word, current, double=True)
    quadratic = pair.quadratic(word, current)

    def true_gain(perm: torch.Tensor) -> float:
        moved = pair.quadratic(word, {**current, word: perm}) - quadratic
        return assignment.total(similarity, perm) - assignment.total(similarity, old) + moved

    perm = assignment.solve(similarity + gradient)
    floor = tolerance * (assignment.total((similarity + gradient).abs_(), old) + abs(quadratic))
    if (gain := true_gain(perm)) > floor:
        return gain, perm
    if torch.equal(perm, old):
        return 0.0, old
    # The gradient is linear in the permutation, so a point between the two has the gradients' mean.
    far = pair.matrix(word, {**current, word: perm}, double=True)
    for step in DAMPING:
        perm = assignment.solve(similarity + torch.lerp(gradient, far, step))
        if (gain := true_gain(perm)) > floor:
            return gain, perm
    return 0.0, old


def _linear_gain(similarity: torch.Tensor, old: torch.Tensor, tolerance: float) -> tuple[float, torch.Tensor]:
    perm = assignment.solve(similarity, overwrite=True)  # the matrix holds costs from here on
    cost, cost_before = assignment.total(similarity, perm), assignment.total(similarity, old)
    gain = cost_before - cost
    return (gain, perm) if gain > tolerance * (abs(cost) + abs(cost_before)) else (0.0, old)
