"""What methods for many models at once share: their objective, rounds of MergeMany, the way back.

The objective is Σ over pairs of models of ⟨π_i θ_i, π_j θ_j⟩, over the tensors that are evidence and move.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...runtime.seeds import derive, generator
from ...spec.atoms import atoms
from ...spec.spec import FittedSpec
from ...symmetry import permutation
from ...symmetry.permutation import permuted
from ...types import Permutations
from .. import Problem
from .blocks import wide
from .descent import Descent
from .pair import Pair


def evidence_of(fitted: FittedSpec) -> list[str]:
    """The names of the tensors that tell units apart."""
    return list(dict.fromkeys(atom.tensor for atom in atoms(fitted) if any(atom.words)))


def objective_of(problem: Problem, current: Sequence[Permutations]) -> float:
    """Σ over models of ⟨π_k θ_k, Σ of the π_j θ_j before it⟩: the inner products of all pairs."""
    total, fitted = 0.0, problem.fitted
    first = permuted(problem.models[0], fitted, current[0])
    running: dict[str, torch.Tensor] = {name: first[name].double() for name in evidence_of(fitted)}
    for model, perm in zip(problem.models[1:], current[1:], strict=True):
        pair = Pair(running, model, fitted)
        with pair.computing():
            total += pair.objective(perm)
        moved = permuted(model, fitted, perm)
        running = {name: running[name] + moved[name].double() for name in running}
    return total


def round_of(
    problem: Problem, current: list[Permutations], number: int, tolerance: float, method: str
) -> tuple[int, bool]:
    """One round of MergeMany: each model, in random order, is matched to the mean of the others.

    `current` changes in place, and the objective never falls. How many assignments were solved, and whether
    a model moved. `method` and `number` name the round's own order.
    """
    models, fitted = problem.models, problem.fitted
    words, evidence = fitted.words, evidence_of(fitted)
    dtype = wide(models, evidence)
    solves, moved = 0, False
    order = torch.randperm(len(models), generator=generator(problem.seed, f"{method} sweep {number}"))
    for k in order.tolist():
        others = [permuted(models[j], fitted, current[j]) for j in range(len(models)) if j != k]
        # in memory: it is read once for every word that touches a tensor; never rounded to a half
        mean = {name: sum(other[name].to(dtype) for other in others) / len(others) for name in evidence}
        pair = Pair(mean, models[k], fitted, device=problem.device)
        found = dict(current[k])
        with pair.computing():
            descent = Descent(pair, tolerance)
            descent.settle(found, derive(problem.seed, f"{method} {number} {k}"))
        solves += descent.solves
        if any(not torch.equal(found[word], current[k][word]) for word in words):
            current[k], moved = found, True
    return solves, moved


def relative(current: Sequence[Permutations]) -> tuple[dict[str, torch.Tensor], ...]:
    """The permutations of all models but the first, as seen from the first."""
    back = permutation.invert(current[0])
    return tuple(permutation.compose(perm, back) for perm in current[1:])
