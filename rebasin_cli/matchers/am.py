"""Activation matching: align the second model to the first by what its units do on data.

Both models see the same samples. Two units are alike where their activations are: a similarity of shape
(n, n), reference unit × model unit, a word, and one linear assignment each. Every word by itself, in one
pass: nothing is repeated, and the seed has no part in it. Units that never change on the data have no
correlation with anything; their rows are 0, and they go where room is left.

Ainsworth et al. 2022, section 3.1, arXiv:2209.04836; Tatro et al. 2020, section 2.2, Algorithm 1 and
appendix D, arXiv:2009.02439.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..registry import option
from ..symmetry import assignment, permutation
from ..symmetry.elements import Elements
from ..symmetry.lists import without_lists
from . import MatchResult, Problem, State, check_evidence, check_two, wm
from .accounts import Begun, Certificate, Constrained
from .activations.elements import Seen, judged, nearest, seen
from .activations.options import Looking
from .activations.similarities import Assigned, best, similarities

NEEDS = frozenset({"network", "data"})
MANY = False
GROUPS = True
BYTES_A_PARAMETER = 8  # both models in the network's own type
DECLARES = frozenset({"identity"})  # planted units are found but for those that the data never wakes


@dataclass(frozen=True)
class Options(Looking):
    """All that can be said of how units are looked at; and `then`: wm, go on from there by weights."""

    then: str = option(
        "nothing", "From what activations say, go on by weights (wm).", choices=("nothing", "wm")
    )


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for the one model beside the reference, from `problem.network` on `problem.data`.

    The objective is Σ over words of the similarity that the assignment reaches (after the activation where
    both count), in the units of the cost. `constrained` gives what no assignment within the constraint
    exceeds as the upper bound, and a certificate a word. Raises UsageError without a network or data, or for
    more than two models, SpecError for lists and for words whose units the network does not show,
    CheckpointError for activations that are not finite, DataError for no data.
    """
    check(problem, "am")
    if problem.groups:
        return _grouped(problem, options)
    words = problem.fitted.words
    settled = best(similarities(problem, options), options, problem.fitted)
    found, still = settled.permutations, permutation.identity(words)
    before, after = (
        sum(assignment.total(matrix, perms[word]) for word, matrix in settled.first.items())
        for perms in (still, found)
    )
    problem.report(State((Elements(found),), 1, after))
    if options.then == "wm":
        return replace(wm.match(replace(problem, start=State((Elements(found),)))), account=Begun("am"))
    if not settled.within:
        return MatchResult((Elements(found),), before, after, 1, len(words), True)
    bound = sum(one.bound for one in settled.within.values())
    rows = Constrained(tuple(_certificates(settled)))
    return MatchResult(
        (Elements(found),), before, after, 1, len(words), True, upper_bound=bound, account=rows
    )


def _grouped(problem: Problem, options: Options) -> MatchResult:
    """The same for words with groups, whose maps are found with their orders."""
    if options.then == "wm" and problem.start is not None:  # the weights' search was interrupted
        return replace(wm.match(problem), account=Begun("am"))
    parts = seen(problem, options)
    if options.then == "wm":
        begin = State((nearest(problem, parts),))
        return replace(wm.match(replace(problem, start=begin)), account=Begun("am"))
    return by_sight(problem, parts)


def by_sight(problem: Problem, parts: Sequence[Seen]) -> MatchResult:
    """The element that is nearest by what was seen alone."""
    element, before, after = judged(problem, parts)
    problem.report(State((element,), 1, after))
    return MatchResult((element,), before, after, 1, len(element.permutations), True)


def _certificates(settled: Assigned) -> Iterator[Certificate]:
    """Of every word (of those that are coupled, together): what it reaches, and what nothing exceeds."""
    for words, one in settled.within.items():
        yield Certificate(tuple(words), one.free, one.reached, one.bound, one.gap, one.before, one.allowed)


def check(problem: Problem, method: str) -> None:
    """Raise UsageError for what a method that looks at activations cannot do with."""
    check_evidence(problem, method)
    check_two(problem, method)
    without_lists(problem.fitted, method)
