"""MergeMany: match each model to the mean of the others, in random order, until nothing changes.

Every model moves, the reference too; the result is turned so that the reference keeps the identity.
Each step is weight matching that goes on from where the model stands, so Σ over pairs of inner products
never falls.

Ainsworth et al. 2022, appendix A.6, Algorithm 3, arXiv:2209.04836.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from ..symmetry import permutation
from ..symmetry.elements import Elements
from . import MatchResult, Problem, State
from .descent import group_many as grouped
from .descent.many import objective_of, relative, round_of
from .descent.options import Sweeps, Tolerance

NEEDS: frozenset[str] = frozenset()
MANY = True
GROUPS = True
ORDERS_ONLY = frozenset({"tolerance"})  # a search with groups has no use for it
BYTES_A_PARAMETER = 20  # the mean of the others in float32, and the sums of the objective in float64
DECLARES = frozenset({"identity", "planted", "monotone"})


@dataclass(frozen=True)
class Options(Tolerance, Sweeps):
    """`tolerance` is that of the weight matching inside; rounds end when no model moves."""


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for every model but the first, so that all lie in one basin; with groups, elements.

    Raises UsageError for fewer than two models.
    """
    problem = problem.stacked
    models, words = problem.models, problem.fitted.words
    if len(models) < 2:
        raise UsageError("merge-many needs at least two models")
    if problem.groups:
        return grouped.match(problem, options.max_sweeps)
    start = problem.start or State((Elements(permutation.identity(words)),) * len(models))
    current = list(start.permutations)
    before = objective_of(problem, [permutation.identity(words)] * len(models))
    sweep, solves, moved = start.sweep, 0, True
    while moved and sweep < options.max_sweeps:
        solved, moved = round_of(problem, current, sweep, options.tolerance, "merge-many")
        sweep, solves = sweep + 1, solves + solved
        problem.report(State(tuple(map(Elements, current)), sweep, objective_of(problem, current)))
    return MatchResult(
        tuple(map(Elements, relative(current))),
        before,
        objective_of(problem, current),
        sweep,
        solves,
        not moved,
    )
