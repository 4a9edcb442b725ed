"""What activations say of words of any group, sized to be searched together with the weights.

Every word counts what its units do as much as its own tensors: its matrix is divided by what the best
element makes of it, and multiplied by what the tensors that it touches can be worth. A share β of the whole
is that of activations, 1 − β that of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...spec.notation import words_of
from ...symmetry import assignment
from ...symmetry.form import constant
from .. import Problem
from ..descent.baked import counted_alike, share_of
from .elements import Seen, nearest
from .similarities import above_chance


class Evidence:
    """All that is compared, for any share of activations.

    `matrices` (n, n) by word are what activations say, `nearest` is the element nearest by these alone.
    """

    def __init__(self, problem: Problem, found: Sequence[Seen]):
        """`found` of both models, which are in canonical form."""
        self.nearest = nearest(problem, found)
        self._parts = [part for each in found if (part := _above_chance(each)).worth > 0]
        self.matrices = {word: matrix for part in self._parts for word, matrix in part.matrices.items()}
        self._own, worth = _weights(problem)
        self._counted = [sum(worth[name] for name in _touched(problem, part, worth)) for part in self._parts]
        self._weights, self._activations = sum(worth.values()) or 1.0, sum(self._counted) or 1.0

    def shares(self, mix: float) -> tuple[dict[str, float | None], dict[str, float]]:
        """The factors of the objective: of tensors, 1 − `mix` in all, and of `matrices`, `mix` in all."""
        tensors = {n: None if s is None else s * (1 - mix) / self._weights for n, s in self._own.items()}
        words = {
            word: mix * count / self._activations / part.worth
            for part, count in zip(self._parts, self._counted, strict=True)
            for word in part.matrices
        }
        return tensors, words


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
