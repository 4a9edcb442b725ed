"""What activations say of words of any group, sized to be searched together with the weights.

Every word counts what its units do as much as its own tensors: its matrix is divided by what the best
element makes of it, and multiplied by what the tensors that it touches can be worth. A share β of the whole
is that of activations, 1 − β that of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ...groups.elements import Elements
from ...permutations import assignment
from ...spec.notation import words_of
from .. import Problem
from ..activations.similarities import above_chance
from .baked import constant, counted_alike, share_of
from .looking import Seen, nearest

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Sized:
    """`matrices` (n, n) by word, the factors of the objective, of tensors and of `matrices`, and the element
    that is nearest by activations alone."""

    nearest: Elements
    matrices: dict[str, torch.Tensor]
    tensors: dict[str, float | None]
    words: dict[str, float]


def sized(problem: Problem, found: Sequence[Seen], mix: float) -> Sized:
    """What was `found` of both models, which are in canonical form, beside a share 1 − `mix` of weights."""
    parts = [part for each in found if (part := _above_chance(each)).worth > 0]
    own, worth = _weights(problem)
    counted = [sum(worth[name] for name in _touched(problem, part, worth)) for part in parts]
    weights, activations = sum(worth.values()) or 1.0, sum(counted) or 1.0
    tensors = {n: None if s is None else s * (1 - mix) / weights for n, s in own.items()}
    words = {
        word: mix * count / activations / part.worth
        for part, count in zip(parts, counted, strict=True)
        for word in part.matrices
    }
    matrices = {word: matrix for part in parts for word, matrix in part.matrices.items()}
    return Sized(nearest(problem, found), matrices, tensors, words)


def _above_chance(part: Seen) -> Seen:
    """What is worth more than a random order, of a word that is only ordered."""
    if not part.ordered:
        return part
    ((word, matrix),) = part.matrices.items()
    rest = above_chance(matrix)
    return replace(part, matrices={word: rest}, worth=assignment.total(rest, assignment.solve(rest).perm))


def _weights(problem: Problem) -> tuple[dict[str, float | None], dict[str, float]]:
    """Of each tensor the factor that a search by weights gives it, and what it can be worth by that; of those
    that are evidence."""
    fitted = problem.fitted
    alike, still = counted_alike(fitted), fitted.statistics | constant(fitted)
    shares: dict[str, float | None] = {}
    worth: dict[str, float] = {}
    for name in fitted.tensors:
        a, b = (model[name] for model in problem.models)
        share = share_of(a, b) if alike or not a.is_floating_point() else 1.0
        shares[name] = share
        if share is not None and name not in still:
            worth[name] = float(share > 0) if alike else float(a.double().norm() * b.double().norm())
    return shares, worth


def _touched(problem: Problem, part: Seen, names: Mapping[str, float]) -> list[str]:
    own = {*part.matrices}
    return [n for n in names if own & {w for axis in problem.fitted.tensors[n] for w in words_of(axis)}]
