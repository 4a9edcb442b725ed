"""What activations say of words of any group, sized to be searched together with the weights.

Every word counts what its units do as much as its own tensors: its matrix is divided by what the best
element makes of it, and multiplied by what the tensors that it touches can be worth. A share β of the whole
is that of activations, 1 − β that of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ...groups.elements import Elements
from ...permutations import assignment
from ...spec.groups import MATRICES
from ...spec.notation import words_of
from .. import Problem
from ..activations.options import Looking
from .baked import constant, share_of
from .looking import Seen, nearest, seen

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Sized:
    """`matrices` (n, n) by word, the factors of the objective, of tensors and of `matrices`, and the element
    that is nearest by activations alone."""

    nearest: Elements
    matrices: dict[str, torch.Tensor]
    tensors: dict[str, float | None]
    words: dict[str, float]


def sized(problem: Problem, options: Looking, mix: float) -> Sized:
    """Both models seen on `problem.data`, in canonical form. Raises as `am.match`."""
    found = seen(problem, options)
    parts = [part for each in found if (part := _above_chance(each)).worth > 0]
    own = _shares(problem)
    worth = {name: share * _norms(problem, name) for name, share in own.items() if share is not None}
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
    """Without what no order changes: the means of a matrix's rows and columns."""
    if not part.ordered:
        return part
    ((word, matrix),) = part.matrices.items()
    rest = matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()
    return replace(part, matrices={word: rest}, worth=assignment.total(rest, assignment.solve(rest).perm))


def _shares(problem: Problem) -> dict[str, float | None]:
    """What a search by weights would multiply each tensor's inner products by."""
    reference, model = problem.models
    if any(kind in MATRICES for kind in problem.fitted.groups.values()):
        return {name: share_of(reference[name], model[name]) for name in problem.fitted.tensors}
    return {n: 1.0 if reference[n].is_floating_point() else None for n in problem.fitted.tensors}


def _norms(problem: Problem, name: str) -> float:
    fitted = problem.fitted
    if name in fitted.statistics or name in constant(fitted):
        return 0.0  # no evidence
    a, b = (model[name].double().norm() for model in problem.models)
    return float(a * b)


def _touched(problem: Problem, part: Seen, names: Mapping[str, float]) -> list[str]:
    own = {*part.matrices}
    return [n for n in names if own & {w for axis in problem.fitted.tensors[n] for w in words_of(axis)}]
