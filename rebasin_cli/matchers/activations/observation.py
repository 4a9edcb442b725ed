"""One pass of all models over the data: what is added up of the activations of every word's units."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ... import networks
from ...datasets.batches import checked, part_of, size_of
from ...errors import CheckpointError
from ...networks import tied
from ...networks.forward import arguments_of, fed
from ...networks.layout import laid
from ...networks.returned import Kept
from ...repair.producers import shape_of
from ...runtime import devices
from ...runtime.ranks import Ranks
from ...runtime.threads import beside
from .. import Problem
from .batches import watch
from .moments import Moments
from .options import Looking
from .places import Place
from .sites import Site, Sites, find

Key = tuple[str, str, int, int]  # "post" or "pre", word, number of the site, number of the place there
Sums = Mapping[Key, Any]


def observed(
    problem: Problem,
    options: Looking,
    *,
    sides: Sequence[str],
    counts: Collection[int] = (),
    none: Callable[[int, torch.device], Any] = Moments.none,
) -> Iterator[tuple[int, Sums]]:
    """One pass of all models over the data: the number of samples so far and what was added up.

    It comes at each of the `counts` of samples and at the end; what was given is added to afterwards.
    Places are in the order of the graph. `none(units, device)` makes what is added to at one: its `add`
    takes the units × samples of every model. The problem's ranks take turns with the batches, and all get the
    sums of all; with several, what `none` makes has `begin` and `joined` as `Moments` do. Raises as `match`.
    """
    device, output, ranks = devices.for_search(problem.device), problem.output, problem.ranks
    kept = Kept(output, problem.not_kept)
    network = networks.on(problem.given_network, device)
    known: dict[str, Sites] = {}
    sums: dict[Key, Any] = {}
    failed: list[Exception] = []  # here; raised when all ranks have come to the same place
    models, seen = tuple(tied.under_all_names(network, model) for model in problem.models), 0
    batches = _batches(problem.given_data, network, device, options.limit, counts, output)
    for number, (size, (args, kwargs)) in enumerate(batches):
        with beside(device) as threads:
            shape = shape_of((args, kwargs))
            if shape not in known:
                known[shape] = find(network, problem.fitted, args, kwargs, kept=kept)
            chosen = dict(_chosen(known[shape], sides, options.sites))
            order = {node: k for k, node in enumerate(known[shape].program.graph.nodes)}
            new = sorted(chosen.keys() - sums.keys(), key=lambda key: (order[chosen[key].node], key))
            for key in new:
                sums[key] = none(problem.fitted.words[key[1]], torch.device(device))
            whose = number % ranks.size
            its = [(at, sums[key]) for key, at in chosen.items() if whose == ranks.rank or key in new]
            if its and not failed:
                try:
                    watch(known[shape], models, (args, kwargs), its, device, threads)
                except Exception as error:
                    failed.append(error)
        if ranks.size == 1 or new:
            ranks.each(_raise, failed)
        if ranks.size > 1:
            for key in new:  # which all have looked at, to begin alike
                sums[key].begin(ranks, whose)
        seen += size
        if seen in counts:
            yield seen, _joined(sums, ranks, failed, keep=True)
    if seen not in counts:
        yield seen, _joined(sums, ranks, failed)


def _raise(failed: Sequence[Exception]) -> None:
    for error in failed:
        raise error


def _joined(sums: dict[Key, Any], ranks: Ranks, failed: Sequence[Exception], *, keep: bool = False) -> Sums:
    """The sums of all ranks; each keeps its own where it goes on."""
    if ranks.size == 1:
        return _finite(sums)
    ranks.each(_raise, failed)
    return _finite({key: (sums[key] if keep else sums.pop(key)).joined(ranks) for key in [*sums]})


def _finite(sums: Sums) -> Sums:
    if broken := sorted({word for (_, word, *_), moments in sums.items() if not moments.finite()}):
        raise CheckpointError(
            f'the activations of "{broken[0]}" hold NaN or infinite values', hint="Check both models' weights"
        )
    return sums


def _chosen(sites: Sites, wanted: Sequence[str], which: str) -> Iterator[tuple[Key, Place]]:
    """The places to look at, by side, word, and their numbers."""
    for word, its in sites.of.items():
        some: tuple[Site, ...] = {"all": its, "first": its[:1], "last": its[-1:]}[which]
        for side in wanted:
            for k, site in enumerate(some):
                for j, place in enumerate(getattr(site, side)):
                    yield (side, word, k, j), place


def _batches(
    data: Any,
    network: nn.Module,
    device: str,
    limit: int,
    counts: Collection[int],
    output: Any = None,
) -> Iterator[tuple[int, tuple[tuple[Any, ...], Mapping[str, Any]]]]:
    """Samples a batch and arguments of the network's forward, until there were `limit`; cut at `counts`."""
    seen = 0
    for inputs, targets in checked(data):
        begun, end = 0, min(size_of(targets, inputs), limit - seen)
        while begun < end:
            stop = min([end, *(count - seen + begun for count in counts if count > seen)])
            part = inputs if stop - begun == size_of(targets, inputs) else part_of(inputs, begun, stop)
            part = laid(network, fed(network, part, device), output)
            seen, size, begun = seen + stop - begun, stop - begun, stop
            yield size, arguments_of(part)
        if seen >= limit:
            return
