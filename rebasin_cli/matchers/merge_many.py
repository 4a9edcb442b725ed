"""MergeMany: match each model to the mean of the others, in random order, until nothing changes.

Every model moves, the reference too; the result is turned so that the reference keeps the identity. Each step
is weight matching that goes on from where the model stands, so Σ over pairs of inner products never falls.
Rounds begin where the models stand, and again where each has joined the mean of those before it. From the
better end kicks go on: some units of one model, or of all, change places, and what rounds make of that is
taken where it is better.

Ainsworth et al. 2022, appendix A.6, Algorithm 3, arXiv:2209.04836; the second start and the kicks are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import MatchResult, Problem, check_several
from .descent.many import Many
from .descent.options import Effort, Tolerance
from .descent.rounds import FEW, Rounds, Start, kicks, turns

NEEDS: frozenset[str] = frozenset()
MANY = True
GROUPS = True
BYTES_A_PARAMETER = 20  # the mean of the others in float32, and the sums of the objective in float64
DECLARES = frozenset({"identity", "planted", "monotone"})

KICKS = {"fast": 0, "normal": 4, "high": 12}  # turns


@dataclass(frozen=True)
class Options(Tolerance, Effort):
    """`tolerance` and `memory` are those of the weight matching inside; rounds end when no model moves.

    `effort`: fast begins with joining alone and kicks nothing; high has every model joined first by the
    others, upwards and downwards, and kicks three times as many turns, in each of them every model.
    """


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """The element of every model but the first, so that all lie in one basin.

    Raises UsageError for fewer than two models.
    """
    problem = problem.stacked
    check_several(problem, "merge-many")
    search = rounds(problem, options)
    if problem.start is not None:
        search.resume(problem.start)
    return search.result(search.run(options.max_sweeps))


def rounds(problem: Problem, options: Options) -> Rounds:
    """The search, which has not begun."""
    begun, few = starts(problem, options), options.effort != "high"
    return Rounds(problem, [*begun, *kicks(begun[0].many, begun[0].order, KICKS[options.effort], few)])


def starts(problem: Problem, options: Options) -> list[Start]:
    """Where rounds begin."""
    many, order = (
        Many(problem, "merge-many", options.tolerance, options.memory),
        tuple(range(len(problem.models))),
    )
    if options.effort == "fast":
        return [Start(many, order, order)]
    joins = [Start(many, order, joining) for joining in turns(len(order), options.effort != "high")]
    still = Start(many, order)  # of many models the last: where it falls behind, it takes most
    return [*joins, still] if len(order) > FEW else [still, *joins]
