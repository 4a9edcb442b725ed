"""Weights and activations together: align the second model to the first by the sum of both similarities.

What units do on data is one similarity a word, found in one pass as `am` does, and stays as it is. What
their weights say depends on the other permutations, as in `wm`. A share β of the one and 1 − β of the other
is what coordinate descent raises: one linear assignment a step, on the sum. To the descent the activations
are one more tensor a word, of shape (n, n), whose counterpart in the model is the unit matrix: its inner
product with that matrix, permuted, is the similarity of the pairs. So all that `wm` does is done here, too.

Sizes: either part is divided by what no permutation exceeds, so far as that is known. For activations, that
is what their own best assignment is worth above the mean of all assignments; for weights, ‖A‖·‖B‖ over what
permutations move (vectors without their mean). Equal models have 1 in both.

The idea is that of Xu et al. 2024 (MuDSC), "Training-Free Pretrained Model Merging", arXiv:2403.01753; the
sizes are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from .. import networks
from ..checkpoints.tensors import overlaid
from ..errors import UsageError
from ..registry import option
from ..spec.notation import Axis, Fixed, Product, Word
from ..symmetry import assignment
from ..symmetry.index_maps import Within
from . import MatchResult, Problem, State, am, wm
from .activations import mixes
from .activations.elements import seen
from .activations.evidence import Evidence
from .activations.similarities import above_chance, assigned, similarities
from .descent.options import Effort
from .descent.pair import Pair

NEEDS = frozenset({"network", "data"})
MANY = False
GROUPS = True
BYTES_A_PARAMETER = 8  # as am
USUAL = 0.5
DECLARES = frozenset({"identity", "planted"})  # its objective never falls, either, but is not that of wm


@dataclass(frozen=True)
class Options(am.Options, Effort):
    """`mix`: β, from 0, which is `wm`, to 1, which is `am`; None is ½, with groups the best of several
    (`activations.mixes`). The rest is as in these two."""

    mix: float | None = option(
        None,
        "How much activations count: 0 is wm, 1 is am (0.5; with --groups all the best of five, by the mean "
        "model's outputs).",
        metavar="0–1",
        min=0,
        max=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at not in ("post", "pre") and self.share != 1:
            raise UsageError(
                f"a mix has one similarity of activations, and --at {self.at} has two, one before the other",
                hint=f"Choose --at post or pre, or --method am --at {self.at}",
            )

    @property
    def share(self) -> float:
        """β where nothing else decides it."""
        return USUAL if self.mix is None else self.mix

    def descent(self) -> wm.Options:
        return wm.Options(max_sweeps=self.max_sweeps, effort=self.effort, memory=self.memory)


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for the one model beside the reference, from weights and from `problem.data`; with groups,
    elements, whose sizes `activations.evidence` gives.

    The objective is β times that of activations plus (1 − β) times that of weights, each divided as said
    above, and never falls; with a mix of 0 or 1 it is that of the one method, and where the mix is chosen
    that of the nearest search. The data are read anew where a search goes on. Raises what `am` and `wm` do.
    """
    am.check(problem, "dual")
    if options.share == 0:
        return wm.match(problem, options.descent())
    if options.share == 1:
        return am.match(problem, options)
    if problem.groups:
        return _grouped(problem, options)
    seen, reached = _activations(problem, options)
    weights = _reach(problem)
    share = options.share / (1 - options.share) * weights / reached
    unit = (1 - options.share) / weights

    def report(state: State) -> None:
        problem.report(replace(state, objective=unit * state.objective))

    both = replace(_with(problem, {word: share * matrix for word, matrix in seen.items()}), progress=report)
    found = wm.match(both, options.descent())
    return replace(
        found, objective_before=unit * found.objective_before, objective_after=unit * found.objective_after,
        upper_bound=None if found.upper_bound is None else unit * found.upper_bound,
    )  # fmt: skip


def _grouped(problem: Problem, options: Options) -> MatchResult:
    """The same for words with groups, whose maps are found with their orders; from what activations say.

    Norms with running statistics have none at a mean that was not reset: there the usual share is taken.
    """
    found = seen(problem, options)
    if options.mix is None and not networks.has_running_statistics(problem.given_network):
        both = Evidence(problem, found)

        def search(given: Problem, mix: float) -> MatchResult:
            return am.by_sight(given, found) if mix == 1 else _mixed(given, options, both, mix)

        return mixes.choose(problem, search)
    return _mixed(problem, options, Evidence(problem, found), options.share)


def _mixed(problem: Problem, options: Options, both: Evidence, mix: float) -> MatchResult:
    """The search for one share of activations."""
    tensors, words = both.shares(mix)
    shares = tensors | {_named(word): share for word, share in words.items()}
    given = _with(problem, both.matrices)
    return wm.match(replace(given, start=given.start or State((both.nearest,))), options.descent(), shares)


def _activations(problem: Problem, options: Options) -> tuple[dict[str, torch.Tensor], float]:
    """The similarity of every word, without what no permutation changes, and what the best ones are worth.

    That is 1 where no unit ever changes on the data.
    """
    seen = {}
    for word, matrix in similarities(problem, options)[options.at].items():
        seen[word] = above_chance(matrix)
    best = assigned(seen, {}, problem.fitted)
    return seen, sum(assignment.total(matrix, best[word]) for word, matrix in seen.items()) or 1.0


def _reach(problem: Problem) -> float:
    pair = Pair(*problem.models, problem.fitted, device=problem.device, ranks=problem.ranks)
    with pair.computing():
        return pair.reach(pair.atoms) or 1.0


def _with(problem: Problem, similar: Mapping[str, torch.Tensor]) -> Problem:
    """The same problem with one more tensor a word: its inner products are these similarities."""
    fitted = problem.fitted
    norms = math.hypot(*(matrix.norm().item() for matrix in similar.values()))
    units = sum(map(len, similar.values()))
    scale = 2.0 ** round(math.log2(norms / math.sqrt(units)) / 2) if norms else 1.0  # both sides of one size
    names = {word: _named(word) for word in similar}
    axes = {names[word]: (_axis(word, fitted.within), Fixed(len(matrix))) for word, matrix in similar.items()}
    shapes = {names[word]: tuple(matrix.shape) for word, matrix in similar.items()}
    here = {names[word]: (matrix / scale).float() for word, matrix in similar.items()}
    there = {names[word]: scale * torch.eye(len(matrix)) for word, matrix in similar.items()}
    return replace(
        problem,
        fitted=replace(fitted, tensors=fitted.tensors | axes, shapes=fitted.shapes | shapes),
        models=tuple(
            model | more if type(model) is dict else overlaid(model, more)
            for model, more in zip(problem.models, (here, there), strict=True)
        ),
    )


def _named(word: str) -> str:
    return f"activations of {word}"


def _axis(word: str, within: Within) -> Axis:
    """All units of a word, a starred one behind what it lies within."""
    if (block := within.get(word)) is None:
        return Word(word)
    outer = Fixed(block.count) if block.word is None else Word(block.word)
    return Product((outer, Word(word, each=True)))
