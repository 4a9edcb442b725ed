"""PAM: descend over doubly stochastic matrices on the mean loss of the line, then round to permutations.

Alternating minimisation takes a permutation step and a curve step in turn; one of each was published. This is
the first: `rebasin curve --method pam`, or `--perm` with what this finds, takes the second, and `--rounds`
goes on. Every word has one matrix, residual streams and heads too.

Tatro et al. 2020, Optimizing mode connectivity via neuron alignment, appendix E (NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..types import Permutations
from . import MatchResult, Problem
from .relaxed.search import Descent, line_loss, memory, search
from .straight_through.start import started

__all__ = ["Options", "initial", "match", "memory", "objective"]

NEEDS = frozenset({"network", "data"})
MANY = False
SAMPLES = None
DECLARES: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Options(Descent):
    """Those of the descent and of the rounding."""


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for the one model beside the reference, from `problem.network` on `problem.data`.

    The objective is the mean loss of the straight line between the two on training samples, in nats and
    negative; it never falls, since where the search started is among what is chosen from. A sweep is one
    step. Raises as `relaxed.search` does.
    """
    return search(problem, options)


def initial(problem: Problem, options: Options) -> Sequence[Permutations]:
    """Where a search begins to whom nobody gives a start, for every model after the first."""
    return started(problem, options.init, problem.given_data)[1]


def objective(problem: Problem, options: Options, permutations: Sequence[Permutations]) -> float:
    """Of several models: the mean over all lines from the first one, negative."""
    first, *others = problem.models
    pairs = (replace(problem, models=(first, model)) for model in others)
    losses = [line_loss(pair, options, perms) for pair, perms in zip(pairs, permutations, strict=True)]
    return -sum(losses) / len(losses)
