"""Activation matching: align the second model to the first by what its units do on data.

Both models see the same samples. Two units are alike where their activations are: a similarity of shape
(n, n), reference unit × model unit, a word, and one linear assignment each. Every word by itself, in one
pass: nothing is repeated, and the seed has no part in it. Units that never change on the data have no
correlation with anything; their rows are 0, and they go where room is left.

Ainsworth et al. 2022, section 3.1, arXiv:2209.04836; Tatro et al. 2020, section 2.2, Algorithm 1 and
appendix D, arXiv:2009.02439.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import assignment, permutation
from ..datasets._batches import checked, head, size_of, to_device
from ..errors import CheckpointError, DataError, UsageError, unknown
from ..observing import Moments, on_one_thread, watch
from ..sites import Place, Site, Sites, find
from ..spec.spec import FittedSpec
from . import MatchResult, Problem, State
from ._wreath import groups, together

NEEDS = frozenset({"network", "data"})
MANY = False
BYTES_A_PARAMETER = 8  # both models in the network's own type
DECLARES = frozenset({"identity"})  # planted units are found but for those that the data never wakes

COSTS = ("correlation", "inner", "l2")
AT = ("post", "pre", "both")
SITES = ("all", "first", "last")
GRID = 24  # bits of a similarity that count; activations have no more in float32
TIGHT = 1e-9  # of the largest similarity: a pair that costs an optimal assignment less costs it nothing


@dataclass(frozen=True)
class Options:
    """`cost`: correlation of standardised units; inner, their mean products, not centred; l2, the squared
    distance, which differs from inner by what no permutation changes.

    `at`: post, after the activation; pre, before it; both, the best before it among the assignments that
    are best after it. `sites`: where a word has several, such as the sums of a residual stream, the mean of
    all of their similarities, or the first or the last one's alone. `limit`: samples.
    """

    cost: str = "correlation"
    at: str = "post"
    sites: str = "all"
    limit: int = 10_000

    def __post_init__(self) -> None:
        for name, known in (("cost", COSTS), ("at", AT), ("sites", SITES)):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        if self.limit < 1:
            raise UsageError(f"a limit of {self.limit} samples leaves nothing", hint="Give 1 or more.")


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for the one model beside the reference, from `problem.network` on `problem.data`.

    The objective is Σ over words of the similarity that the assignment reaches (after the activation where
    both count), in the units of the cost. Raises UsageError without a network or data, or for more than two
    models, SpecError for words whose units the network does not show, CheckpointError for activations that
    are not finite, DataError for no data.
    """
    check(problem, "am")
    words = problem.fitted.words
    similar = similarities(problem, options)
    first = similar["pre" if options.at == "pre" else "post"]
    second = similar["pre"] if options.at == "both" else {}
    found = assigned(first, second, problem.fitted)
    still = permutation.identity(words)
    before, after = (
        sum(assignment.total(matrix, perms[word]) for word, matrix in first.items())
        for perms in (still, found)
    )
    problem.report(State((found,), 1, after))
    return MatchResult((found,), before, after, 1, len(words), True)


def check(problem: Problem, method: str) -> None:
    """Raise UsageError for what a method that looks at activations cannot do with."""
    if problem.network is None or problem.data is None:
        raise UsageError(f"{method} needs the network and data", hint="Give both: network=…, data=…")
    if len(problem.models) != 2:
        raise UsageError(f"{method} matches two models, not {len(problem.models)}")


Similar = Mapping[str, torch.Tensor]


def assigned(first: Similar, second: Similar, fitted: FittedSpec) -> dict[str, torch.Tensor]:
    """The best permutation of every word; the identity for a word without a similarity."""
    found = permutation.identity(fitted.words)
    coupled = groups(fitted.within)
    for group in coupled.values():
        chosen = {word: _leaning(first[word], second.get(word)) for word in group.words if word in first}
        if chosen:
            found |= together(group.outer, chosen, fitted.within)
    alone = [word for word in first if not any(word in group.words for group in coupled.values())]
    return found | {word: _solved(first[word], second.get(word)) for word in alone}


def _solved(similarity: torch.Tensor, second: torch.Tensor | None) -> torch.Tensor:
    """The best permutation; of all that are best, the best one by `second`.

    Those use tight pairs only, whose similarity is the sum of their duals (complementary slackness), so all
    others are forbidden. Tatro et al. 2020, equation 31, the constraint taken first.
    """
    solution = assignment.solve(similarity)
    if second is None:
        return solution.perm
    slack = solution.rows[:, None] + solution.columns - similarity
    tight = slack <= TIGHT * similarity.abs().max()
    tight[torch.arange(len(similarity)), solution.perm] = True
    forbidden = -(2 * len(second) + 1) * (1 + second.abs().max())
    return assignment.solve(torch.where(tight, second, forbidden)).perm


def _leaning(similarity: torch.Tensor, second: torch.Tensor | None) -> torch.Tensor:
    """The similarity, with so little of `second` that it settles only what is as good as equal.

    For heads and their units, which are solved together and have no duals as one.
    """
    if second is None:
        return similarity
    tiny = torch.finfo(torch.float64).tiny
    return similarity + second * (TIGHT * similarity.abs().max() / second.abs().max().clamp(min=tiny))


def similarities(problem: Problem, options: Options) -> dict[str, dict[str, torch.Tensor]]:
    """The similarity (n, n), float64, of every word, "post" and "pre" as far as they are asked for."""
    wanted = ("post", "pre") if options.at == "both" else (options.at,)
    network, device, output = problem.network.to(problem.device), problem.device, problem.output
    known: dict[Any, Sites] = {}
    sums: dict[tuple[str, str, int, int], Moments] = {}
    models = tuple(problem.models)
    with on_one_thread():
        for args, kwargs in _batches(problem, options.limit):
            shape = _shapes((args, kwargs))
            if shape not in known:
                known[shape] = find(network, problem.fitted, args, kwargs, output=output)
            sites = known[shape]
            chosen = dict(_chosen(sites, wanted, options.sites))
            for key in chosen.keys() - sums.keys():
                sums[key] = Moments.none(problem.fitted.words[key[1]], torch.device(device))
            watch(sites, models, (args, kwargs), [(p, sums[key]) for key, p in chosen.items()], device)
    if not known:
        raise DataError("the data holds no samples", hint="Is the loader a generator that was read before?")
    if broken := sorted({word for (_, word, *_), moments in sums.items() if not moments.finite()}):
        raise CheckpointError(
            f'the activations of "{broken[0]}" hold NaN or infinite values', hint="Check both models' weights"
        )
    found: dict[str, dict[str, torch.Tensor]] = {side: {} for side in wanted}
    for side, word in dict.fromkeys(key[:2] for key in sums):
        its = [getattr(moments, options.cost)() for key, moments in sums.items() if key[:2] == (side, word)]
        found[side][word] = _rounded(sum(its) / len(its)).cpu()
    return found


def _rounded(matrix: torch.Tensor) -> torch.Tensor:
    """Multiples of 2^-24 of its size: how products in float64 end depends on where they lie in memory."""
    _, power = torch.frexp(matrix.abs().max())
    step = torch.ldexp(torch.ones((), dtype=torch.float64, device=matrix.device), power - GRID)
    return (matrix / step).round() * step


def _chosen(
    sites: Sites, wanted: tuple[str, ...], which: str
) -> Iterator[tuple[tuple[str, str, int, int], Place]]:
    """The places to look at, by side, word, and their numbers."""
    for word, its in sites.of.items():
        some: tuple[Site, ...] = {"all": its, "first": its[:1], "last": its[-1:]}[which]
        for side in wanted:
            for k, site in enumerate(some):
                for j, place in enumerate(getattr(site, side)):
                    yield (side, word, k, j), place


def _batches(problem: Problem, limit: int) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """Arguments of the network's forward, until there were so many samples."""
    for inputs, targets in checked(problem.data):
        size = min(size_of(targets), limit)
        if size:
            inputs = head(inputs, size) if size < size_of(targets) else inputs
            inputs = to_device(inputs, problem.device)
            if isinstance(inputs, Mapping):
                yield (), inputs
            else:
                yield tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}
        limit -= size
        if limit <= 0:
            return


def _shapes(value: Any) -> Any:
    """What a graph depends on: structure, shapes and types."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Mapping):
        return tuple((key, _shapes(item)) for key, item in value.items())
    return tuple(map(_shapes, value)) if isinstance(value, (tuple, list)) else value
