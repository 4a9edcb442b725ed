"""MergeMany: match each model to the mean of the others, in random order, until nothing changes.

Every model moves, the reference too; the result is turned so that the reference keeps the identity.
Each step is weight matching that goes on from where the model stands, so Σ over pairs of inner products
never falls.

Ainsworth et al. 2022, appendix A.6, Algorithm 3, arXiv:2209.04836.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import permutation
from ..errors import UsageError
from ..permutation import Permutations, permuted
from ..randomness import derive, generator
from ..spec.atoms import atoms
from . import MatchResult, Problem, State
from ._blocks import wide
from ._descent import Descent
from ._pair import Pair

NEEDS = frozenset()
MANY = True
BYTES_A_PARAMETER = 20  # the mean of the others in float32, and the sums of the objective in float64
DECLARES = frozenset({"identity", "planted", "monotone"})


@dataclass(frozen=True)
class Options:
    """`tolerance` is that of the weight matching inside; rounds end when no model moves."""

    max_sweeps: int = 100
    tolerance: float = 1e-12


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for every model but the first, so that all lie in one basin.

    Raises UsageError for fewer than two models.
    """
    models, fitted = problem.models, problem.fitted
    if len(models) < 2:
        raise UsageError("merge-many needs at least two models")
    words = fitted.words
    evidence = _evidence(problem)
    dtype = wide(models, evidence)
    start = problem.start or State((permutation.identity(words),) * len(models))
    current = list(start.permutations)
    before = _objective(problem, [permutation.identity(words)] * len(models))
    sweep, solves, moved = start.sweep, 0, True
    while moved and sweep < options.max_sweeps:
        moved = False
        order = torch.randperm(len(models), generator=generator(problem.seed, f"merge-many sweep {sweep}"))
        for k in order.tolist():
            others = [permuted(models[j], fitted, current[j]) for j in range(len(models)) if j != k]
            # in memory: it is read once for every word that touches a tensor; never rounded to a half
            mean = {name: sum(other[name].to(dtype) for other in others) / len(others) for name in evidence}
            pair = Pair(mean, models[k], fitted, device=problem.device)
            found = dict(current[k])
            with pair.computing():
                descent = Descent(pair, options.tolerance)
                descent.settle(found, derive(problem.seed, f"merge-many {sweep} {k}"))
            solves += descent.solves
            if any(not torch.equal(found[word], current[k][word]) for word in words):
                current[k], moved = found, True
        sweep += 1
        problem.report(State(tuple(current), sweep, _objective(problem, current)))
    return MatchResult(_relative(current), before, _objective(problem, current), sweep, solves, not moved)


def _relative(current: Sequence[Permutations]) -> tuple[dict[str, torch.Tensor], ...]:
    """The permutations of all models but the first, as seen from the first."""
    back = permutation.invert(current[0])
    return tuple(permutation.compose(perm, back) for perm in current[1:])


def _evidence(problem: Problem) -> list[str]:
    return list(dict.fromkeys(atom.tensor for atom in atoms(problem.fitted) if any(atom.words)))


def _objective(problem: Problem, current: Sequence[Permutations]) -> float:
    """Σ over models of ⟨π_k θ_k, Σ of the π_j θ_j before it⟩: the inner products of all pairs."""
    total, fitted = 0.0, problem.fitted
    first = permuted(problem.models[0], fitted, current[0])
    running: dict[str, torch.Tensor] = {name: first[name].double() for name in _evidence(problem)}
    for model, perm in zip(problem.models[1:], current[1:], strict=True):
        pair = Pair(running, model, fitted)
        with pair.computing():
            total += pair.objective(perm)
        moved = permuted(model, fitted, perm)
        running = {name: running[name] + moved[name].double() for name in running}
    return total
