"""How alike the units are that a permutation matches, layer by layer, and whether more data matches others.

The signature of a pair of models is, for every word, the mean and standard deviation over units of the
correlation of unit i of A and unit perm[i] of B, before and after alignment: an alignment that found
something lifts the mean. Tatro et al. 2020, figure 1 and section 3.1, arXiv:2009.02439.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import networks
from ..averages.means import interpolate
from ..errors import CheckpointError, DataError, NetworkError, SpecError, UsageError
from ..learning.curves.curve import Curve
from ..matchers import Problem, am
from ..matchers.activations import MATCH_BATCH
from ..matchers.activations.moments import Moments
from ..matchers.activations.observation import Sums, observed
from ..matchers.activations.similarities import best, compared, sides_of
from ..matchers.portfolio.listed import apart
from ..repair.batchnorm import reset
from ..runtime.ranks import ALONE, Ranks
from ..spec.spec import FittedSpec
from ..symmetry.permutation import check, identity
from ..types import Batches, Permutations, Tensors

SIDE = "post"


@dataclass(frozen=True)
class Stability:
    """The share, 0–1, of units that activation matching matches as it does on the most samples.

    `samples` are the counts, ascending; `words` maps each word to one share a count, the last one 1 (NaN
    where no unit lives); `overall` is over the units of all words. Units that are dead, or matched to a dead
    one, on the most samples are left out: their matches mean nothing. `permutations` are those found on the
    most samples, `table` is the signature of them, on the same.
    """

    samples: tuple[int, ...]
    words: dict[str, tuple[float, ...]]
    overall: tuple[float, ...]
    permutations: dict[str, torch.Tensor]
    table: tuple[dict[str, Any], ...]


def signature(
    a: Tensors,
    b: Tensors,
    fitted: FittedSpec,
    permutations: Permutations,
    *,
    network: nn.Module,
    data: Iterable[Any],
    limit: int = 10_000,
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> tuple[dict[str, Any], ...]:
    """One row a "word", in the order of the network: its "units", the "dead", and how the matched correlate.

    `permutations` are B's; "before" is without them, "after" with. Correlations are of activations, after
    the activation function, over `limit` samples of `data` (and all positions), −1 … 1; "mean" and "std" are
    over the pairs of units of which neither is dead, NaN where there is none. "dead" counts the units of A
    and of B that are constant on the data. Where a word is seen at several places, such as the sums of a
    residual stream, a pair's correlation is the mean over those where both live. Words whose units are seen
    as those of words within them (heads) have no row.

    One pass over the data. Raises SpecError for words that the network does not show, CheckpointError for
    permutations that do not fit and activations that are not finite, DataError, NetworkError.

    `output` and `not_kept` are as in `rebasin_cli.align`. Several `ranks` take turns with the batches.
    """
    check(permutations, fitted.words, within=fitted.within)
    fitted, b, permutations = apart(fitted, b, permutations)
    problem = watched((a, b), fitted, network, data, output, not_kept, device, ranks)
    *_, (_, sums) = observed(problem, am.Options(limit=limit), sides=[SIDE])
    return table(sums, fitted, permutations)


def along(
    curve: Curve,
    fitted: FittedSpec,
    *,
    network: nn.Module,
    data: Iterable[Any],
    reset_batches: Batches | None = None,
    limit: int = 10_000,
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> tuple[dict[str, Any], ...]:
    """The signature of a curve: how its first end's units correlate with those of its middle, r(½).

    Rows as of `signature`: "before" with the units as they are, "after" with those of r(½) in the order that
    correlates best, so both are near each other where the curve keeps units in their places; beside these
    "line", of the middle of the straight line, and "ends", of the other end. With `reset_batches`, running
    statistics of both middles are estimated anew first. Three passes over the data; `network` is overwritten.

    Raises as `signature`. Tatro et al. 2020, figures 1b and 1c.
    """
    fitted = fitted.unlisted or fitted
    options, still = am.Options(limit=limit), identity(fitted.words)

    def seen(other: Tensors) -> Sums:
        problem = watched((curve.a, other), fitted, network, data, output, not_kept, device, ranks)
        *_, (_, sums) = observed(problem, options, sides=[SIDE])
        return sums

    def middle(model: Tensors) -> Tensors:
        if reset_batches is None:
            return model
        networks.load(network, model)
        reset(network.to(device), reset_batches, device=device)
        return {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}

    sums = seen(middle(curve.at(0.5)))
    rows = table(sums, fitted, best(compared(sums, options), options, fitted).permutations)
    line = table(seen(middle(interpolate(curve.a, curve.b, 0.5, keep=curve.keep))), fitted, still)
    ends = table(seen(curve.b), fitted, still)
    return tuple(
        row | {"line": straight["before"], "ends": far["before"]}
        for row, straight, far in zip(rows, line, ends, strict=True)
    )


REPORTED = 2_560  # samples that a report's signature looks at
REPORTED_BATCH = 256  # as where a repair is measured: a network is traced for one size of batches


def in_report(
    a: Tensors, b: Tensors, fitted: FittedSpec, *, data: Any, seed: int, **kwargs: Any
) -> Callable[[Permutations | None], tuple[dict[str, Any], ...]]:
    """`signature` of the permutations that a report comes to, on some samples of `data`; () without any.

    So it is for networks that do not show all of their units, or whose activations are no numbers: a report
    does not need it.
    """
    some = data.subset(REPORTED, seed)
    some = some.with_batch_size(REPORTED_BATCH if some.samples % REPORTED_BATCH == 0 else MATCH_BATCH)

    def signed(permutations: Permutations | None) -> tuple[dict[str, Any], ...]:
        try:
            found = permutations and signature(a, b, fitted, permutations, data=some, **kwargs)
        except (SpecError, NetworkError, CheckpointError, DataError):
            return ()
        return found or ()

    return signed


def table(sums: Sums, fitted: FittedSpec, permutations: Permutations) -> tuple[dict[str, Any], ...]:
    """The rows of `signature`, from what `observed` added up."""
    still = identity(fitted.words)
    return tuple(
        {"word": word, "units": fitted.words[word], "dead": sum(dead(its))}
        | {
            name: _mean_and_std(its, perms[word])
            for name, perms in (("before", still), ("after", permutations))
        }
        for word, its in _places(sums).items()
    )


def watched(
    models: Sequence[Tensors],
    fitted: FittedSpec,
    network: nn.Module,
    data: Iterable[Any],
    output: str | int | None,
    not_kept: Sequence[str],
    device: str,
    ranks: Ranks = ALONE,
) -> Problem:
    """These models on this data, as what looks at activations takes them."""
    return Problem(
        fitted,
        tuple(models),
        network=network,
        data=data,
        output=output,
        not_kept=tuple(not_kept),
        device=device,
        ranks=ranks,
    )


def _places(sums: Sums) -> dict[str, list[Moments]]:
    """What was added up after activations, by word."""
    places: dict[str, list[Moments]] = {}
    for (side, word, *_), moments in sums.items():
        if side == SIDE:
            places.setdefault(word, []).append(moments)
    return places


def dead(places: Sequence[Moments]) -> tuple[int, int]:
    """How many units of A and of B are constant wherever they are seen."""
    spreads = zip(*(moments.spread() for moments in places), strict=True)
    of_a, of_b = (int((torch.stack(stds).amax(0) == 0).sum()) for stds in spreads)
    return of_a, of_b


def _mean_and_std(places: Sequence[Moments], perm: torch.Tensor) -> dict[str, float]:
    """Of the correlations of matched units that live."""
    total, count = torch.zeros(len(perm), dtype=torch.float64), torch.zeros(len(perm), dtype=torch.float64)
    for moments in places:
        first, second = (std.cpu() for std in moments.spread())
        alive = (first > 0) & (second[perm] > 0)
        total += moments.correlation().cpu().gather(1, perm[:, None])[:, 0]  # 0 where one is dead
        count += alive
    found = (total / count)[count > 0]
    if not len(found):
        return {"mean": float("nan"), "std": float("nan")}
    return {"mean": found.mean().item(), "std": found.std(correction=0).item()}


def stability(
    a: Tensors,
    b: Tensors,
    fitted: FittedSpec,
    counts: Sequence[int],
    *,
    network: nn.Module,
    data: Iterable[Any],
    options: am.Options = am.Options(),  # noqa: B008 (frozen)
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> Stability:
    """Activation matching on the first of `counts` samples, on as many as the next …, and how they agree.

    The samples come in the order of `data`: shuffle what is sorted by class. Each count includes the smaller
    ones, so shares are near 1 where few samples are enough. `options` say how to match; their limit is not
    used. One pass over the data.

    Raises UsageError unless there are two counts or more, DataError where there are not so many samples, and
    as `signature`. Tatro et al. 2020, section 3.1.
    """
    samples = tuple(sorted(set(counts)))
    if len(samples) < 2 or samples[0] < 1:
        raise UsageError(
            "stability compares matches on two counts of samples or more, and "
            f"{', '.join(map(str, counts)) or 'none'} is given",
            hint="Give them like 2500,5000,10000",
        )
    fitted = fitted.unlisted or fitted
    problem = watched((a, b), fitted, network, data, output, not_kept, device, ranks)
    options = am.Options(options.cost, options.at, options.sites, limit=samples[-1])
    sides = tuple(dict.fromkeys([SIDE, *sides_of(options)]))
    found: list[dict[str, torch.Tensor]] = []
    rows: tuple[dict[str, Any], ...] = ()
    alive: dict[str, torch.Tensor] = {}
    seen = 0
    for seen, sums in observed(problem, options, sides=sides, counts=samples):
        found.append(best(compared(sums, options), options, fitted).permutations)
        if seen == samples[-1]:
            rows = table(sums, fitted, found[-1])
            alive = {word: _alive(its, found[-1][word]) for word, its in _places(sums).items()}
    if seen < samples[-1]:
        raise DataError(
            f"the data has {seen} samples, and matches on {samples[-1]} should be compared",
            hint=f"Ask for counts up to {seen}",
        )
    same = {
        word: [(perms[word] == found[-1][word])[mask].double() for perms in found]
        for word, mask in alive.items()
    }
    shares = {word: tuple(its.mean().item() for its in counted) for word, counted in same.items()}
    overall = tuple(torch.cat(its).mean().item() for its in zip(*same.values(), strict=True))
    return Stability(samples, shares, overall, found[-1], rows)


def _alive(places: Sequence[Moments], perm: torch.Tensor) -> torch.Tensor:
    """Which units of A (n,) live, and are matched to one that does, at one place at least."""
    pairs = ([std.cpu() for std in moments.spread()] for moments in places)
    return torch.stack([(first > 0) & (second[perm] > 0) for first, second in pairs]).any(0)
