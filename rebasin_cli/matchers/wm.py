"""Weight matching: align the second model to the first by comparing weights alone.

Hold all permutations but one, sum the inner products of matching slices into a similarity of shape
(n, n), reference unit × model unit, and solve one linear assignment; go round until nothing improves.
The first round goes from what cannot move to the inside, later ones in random order. The objective never
falls; the optimum is local and depends on the seed, which orders the layers.

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
DOUBT = 1e-5  # a gain below this share of ‖A‖·‖B‖ may be round-off of float32 products


@dataclass(frozen=True)
class Options:
    """`tolerance`: a gain below this share of ‖A‖·‖B‖, over the tensors concerned, counts as none."""

    max_sweeps: int = 100
    tolerance: float = 1e-12


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
        now = before if problem.start is None else pair.objective(current)
        words = sorted(word for word, size in fitted.words.items() if size > 1)
        stale, solves, sweep = set(words), 0, start.sweep
        while stale and sweep < options.max_sweeps:
            order = torch.randperm(len(words), generator=generator(problem.seed, f"wm sweep {sweep}"))
            if problem.start is None and sweep == 0:
                first = _outward(pair, [words[k] for k in order.tolist()], current, options.tolerance)
                solves += len(words)
                if (reached := pair.objective(first)) >= now:
                    current, now = first, reached
                order = order[:0]
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


def _outward(pair: Pair, order: list[str], current: dict, tolerance: float) -> dict[str, torch.Tensor]:
    """The first sweep: from what cannot move, inputs and outputs, to the inside.

    At the beginning the permutations around a word are as good as random, and what they say is noise that
    a search may never get rid of. So the next word is the one that most is known about, and only tensors
    whose other words have had their turn say anything. `order` decides among equals.
    """
    found = dict(current)
    known = {word for word in pair.words if word not in order}
    total = {word: pair.columns(pair.single[word], word) for word in order}
    waiting = list(order)
    while waiting:
        evidence = {word: pair.resting_on(word, known) for word in waiting}
        word = max(waiting, key=lambda w: pair.columns(evidence[w], w) / max(1, total[w]))
        waiting.remove(word)
        known.add(word)
        costs = pair.matrix(word, found, chosen=evidence[word])
        perm = assignment.solve(costs, overwrite=True)
        gain = assignment.total(costs, found[word]) - assignment.total(costs, perm)
        del costs  # two of these at a time would be too many
        if gain > tolerance * pair.scale(word):
            found[word] = perm
    return found


def _improve(pair: Pair, word: str, current: dict, tolerance: float) -> tuple[float, torch.Tensor]:
    """The best assignment for one word with the others held, and what it gains; 0 where nothing does.

    A gain near the round-off of the products is measured again in float64 before it is believed: so the
    objective rises with every step, and no round-off keeps the search alive.
    """
    old, scale = current[word], pair.scale(word)
    similarity = pair.matrix(word, current)
    if not pair.double[word]:
        costs = similarity  # negated in place by the solver
        perm = assignment.solve(costs, overwrite=True)
        gain = assignment.total(costs, old) - assignment.total(costs, perm)
        if not torch.equal(perm, old) and gain < DOUBT * scale:
            gain = pair.gain(word, current, perm)
        return (gain, perm) if gain > tolerance * scale else (0.0, old)
    gradient = pair.matrix(word, current, double=True)
    perm = assignment.solve(similarity + gradient)
    if torch.equal(perm, old):
        return 0.0, old
    if (gain := pair.gain(word, current, perm)) > tolerance * scale:
        return gain, perm
    # The gradient is linear in the permutation, so a point between the two has the gradients' mean.
    far = pair.matrix(word, {**current, word: perm}, double=True)
    for step in DAMPING:
        perm = assignment.solve(similarity + torch.lerp(gradient, far, step))
        if (gain := pair.gain(word, current, perm)) > tolerance * scale:
            return gain, perm
    return 0.0, old
