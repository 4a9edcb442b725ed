"""Activation matching: align the second model to the first by what its units do on data.

Both models see the same samples. Two units are alike where their activations are: a similarity of shape
(n, n), reference unit × model unit, a word, and one linear assignment each. Every word by itself, in one
pass: nothing is repeated, and the seed has no part in it. Units that never change on the data have no
correlation with anything; their rows are 0, and they go where room is left.

Ainsworth et al. 2022, section 3.1, arXiv:2209.04836; Tatro et al. 2020, section 2.2, Algorithm 1 and
appendix D, arXiv:2009.02439.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import networks
from ..datasets._batches import checked, part_of, size_of, to_device
from ..errors import CheckpointError, DataError, UsageError, unknown
from ..permutations import assignment, permutation
from ..registry import option
from ..runtime import devices
from ..spec.spec import FittedSpec
from . import MatchResult, Problem, State
from .activations.moments import Moments, on_one_thread, watch
from .activations.sites import Place, Site, Sites, find
from .weights.starred import groups, together

NEEDS = frozenset({"network", "data"})
MANY = False
BYTES_A_PARAMETER = 8  # both models in the network's own type
DECLARES = frozenset({"identity"})  # planted units are found but for those that the data never wakes

COSTS = ("correlation", "inner", "l2")
AT = ("post", "pre", "both")
SITES = ("all", "first", "last")
GRID = 24  # bits of a similarity that count; activations have no more in float32
TIGHT = 1e-9  # of the largest similarity: a pair that costs an optimal assignment less costs it nothing

Key = tuple[str, str, int, int]  # "post" or "pre", word, number of the site, number of the place there
Sums = Mapping[Key, Any]


Similar = Mapping[str, torch.Tensor]  # of every word, (n, n)


@dataclass(frozen=True)
class Options:
    """`cost`: correlation of standardised units; inner, their mean products, not centred; l2, the squared
    distance, which differs from inner by what no permutation changes.

    `at`: post, after the activation; pre, before it; both, the best before it among the assignments that
    are best after it. `sites`: where a word has several, such as the sums of a residual stream, the mean of
    all of their similarities, or the first or the last one's alone. `limit`: samples.
    """

    cost: str = option("correlation", "How the activations of two units are compared.", choices=COSTS)
    at: str = option(
        "post",
        "Where units are looked at: after the activation, before it, or (am) both.",
        choices=AT,
    )
    sites: str = option("all", "Which sums of a residual stream are looked at.", choices=SITES)
    limit: int = option(10_000, "Look at this many training samples.", min=1)

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
    first, second = leading(similarities(problem, options), options)
    found, still = assigned(first, second, problem.fitted), permutation.identity(words)
    before, after = (
        sum(assignment.total(matrix, perms[word]) for word, matrix in first.items())
        for perms in (still, found)
    )
    problem.report(State((found,), 1, after))
    return MatchResult((found,), before, after, 1, len(words), True)


def leading(similar: Mapping[str, Similar], options: Options) -> tuple[Similar, Similar]:
    """Of what `similarities` gives, the side that decides, and the one that decides among equals."""
    return similar["pre" if options.at == "pre" else "post"], similar["pre"] if options.at == "both" else {}


def check(problem: Problem, method: str) -> None:
    """Raise UsageError for what a method that looks at activations cannot do with."""
    if problem.network is None or problem.data is None:
        raise UsageError(f"{method} needs the network and data", hint="Give both: network=…, data=…")
    if len(problem.models) != 2:
        raise UsageError(f"{method} matches two models, not {len(problem.models)}")


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
    sides = sides_of(options)
    *_, (_, sums) = observed(problem, options, sides=sides)
    return compared(sums, options)


def sides_of(options: Options) -> tuple[str, ...]:
    return ("post", "pre") if options.at == "both" else (options.at,)


def observed(
    problem: Problem,
    options: Options,
    *,
    sides: Sequence[str],
    counts: Collection[int] = (),
    none: Callable[[int, torch.device], Any] = Moments.none,
) -> Iterator[tuple[int, Sums]]:
    """One pass of all models over the data: the number of samples so far and what was added up.

    It comes at each of the `counts` of samples and at the end; what was given is added to afterwards.
    Places are in the order of the graph. `none(units, device)` makes what is added to at one: its `add`
    takes the units × samples of every model. Raises as `match`.
    """
    device, output = devices.for_search(problem.device), problem.output
    network = networks.on(problem.network, device)
    known: dict[Any, Sites] = {}
    sums: dict[Key, Any] = {}
    models, seen = tuple(problem.models), 0
    for size, (args, kwargs) in _batches(problem.data, device, options.limit, counts):
        with on_one_thread():
            shape = _shapes((args, kwargs))
            if shape not in known:
                known[shape] = find(network, problem.fitted, args, kwargs, output=output)
            chosen = dict(_chosen(known[shape], sides, options.sites))
            order = {node: k for k, node in enumerate(known[shape].program.graph.nodes)}
            for key in sorted(chosen.keys() - sums.keys(), key=lambda key: (order[chosen[key].node], key)):
                sums[key] = none(problem.fitted.words[key[1]], torch.device(device))
            watch(known[shape], models, (args, kwargs), [(p, sums[key]) for key, p in chosen.items()], device)
        seen += size
        if seen in counts:
            yield seen, _finite(sums)
    if not known:
        raise DataError("the data holds no samples", hint="Is the loader a generator that was read before?")
    if seen not in counts:
        yield seen, _finite(sums)


def _finite(sums: Sums) -> Sums:
    if broken := sorted({word for (_, word, *_), moments in sums.items() if not moments.finite()}):
        raise CheckpointError(
            f'the activations of "{broken[0]}" hold NaN or infinite values', hint="Check both models' weights"
        )
    return sums


def compared(sums: Sums, options: Options) -> dict[str, dict[str, torch.Tensor]]:
    """The similarities that sums over samples give, the mean over a word's sites."""
    found: dict[str, dict[str, torch.Tensor]] = {side: {} for side in sides_of(options)}
    for side, word in dict.fromkeys(key[:2] for key in sums if key[0] in found):
        its = [getattr(moments, options.cost)() for key, moments in sums.items() if key[:2] == (side, word)]
        found[side][word] = _rounded(sum(its) / len(its)).cpu()
    return found


def _rounded(matrix: torch.Tensor) -> torch.Tensor:
    """Multiples of 2^-24 of its size: how products in float64 end depends on where they lie in memory."""
    _, power = torch.frexp(matrix.abs().max())
    step = torch.ldexp(torch.ones((), dtype=torch.float64, device=matrix.device), power - GRID)
    return (matrix / step).round() * step


def _chosen(sites: Sites, wanted: tuple[str, ...], which: str) -> Iterator[tuple[Key, Place]]:
    """The places to look at, by side, word, and their numbers."""
    for word, its in sites.of.items():
        some: tuple[Site, ...] = {"all": its, "first": its[:1], "last": its[-1:]}[which]
        for side in wanted:
            for k, site in enumerate(some):
                for j, place in enumerate(getattr(site, side)):
                    yield (side, word, k, j), place


def _batches(
    data: Any, device: str, limit: int, counts: Collection[int]
) -> Iterator[tuple[int, tuple[tuple[Any, ...], Mapping[str, Any]]]]:
    """Samples a batch and arguments of the network's forward, until there were `limit`; cut at `counts`."""
    seen = 0
    for inputs, targets in checked(data):
        begun, end = 0, min(size_of(targets), limit - seen)
        while begun < end:
            stop = min([end, *(count - seen + begun for count in counts if count > seen)])
            part = inputs if stop - begun == size_of(targets) else part_of(inputs, begun, stop)
            part = to_device(part, device)
            seen, size, begun = seen + stop - begun, stop - begun, stop
            if isinstance(part, Mapping):
                yield size, ((), part)
            else:
                yield size, (tuple(part) if isinstance(part, (tuple, list)) else (part,), {})
        if seen >= limit:
            return


def _shapes(value: Any) -> Any:
    """What a graph depends on: structure, shapes and types."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Mapping):
        return tuple((key, _shapes(item)) for key, item in value.items())
    return tuple(map(_shapes, value)) if isinstance(value, (tuple, list)) else value
