"""How much activations count beside weights, where nobody says it: the mean model's outputs decide.

A search ends near where its share of activations leads it, and which share leads to the better merge differs
from pair to pair. So several are tried, and the one is taken whose mean model comes nearest to the mean of
both models' outputs, on the samples that activations were looked at. Labels are not needed for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ... import networks
from ...averages.mixing import average
from ...datasets._batches import checked, head, size_of
from ...groups import elements as acts
from ...groups.elements import Elements
from ...repair.ensemble import Ensemble, holding
from ...runtime import devices
from .. import MatchResult, Problem, State

MIXES = (0.3, 0.5, 0.7, 0.9, 1.0)
SAMPLES = 2_000  # at most, by which they are compared
NUMBER = "mix"  # the note of a kept state that says which of them is at work
LACKS, ORDER, MAP = "mix lacks ", "mix's order ", "mix's map "  # how its other notes and tensors begin

Search = Callable[[Problem, float], MatchResult]


@dataclass(frozen=True)
class Tried:
    """The searches so far: what each one's mean lacks, by mix, and the best element."""

    lacks: dict[float, float]
    best: Elements

    @property
    def mix(self) -> float:
        return min(self.lacks, key=self.lacks.__getitem__)

    def account(self) -> dict[str, Any]:
        return {"mix": self.mix, "lacks": {f"{mix:g}": lacking for mix, lacking in self.lacks.items()}}


def choose(problem: Problem, search: Search) -> MatchResult:
    """The search for the mix of `MIXES` whose mean lacks least; `MatchResult.mixed` tells what each lacks.

    That is the mean square of what its outputs lack of the mean of both models' outputs. Between two searches
    as good as each other the first is taken. Kept states go on with the mix that was at work.
    """
    kept, ensemble = problem.start, _Means(problem)
    tried = _tried(kept)
    found: MatchResult | None = None
    for number, mix in enumerate(MIXES):
        if mix in tried.lacks:
            continue
        here = kept if kept is not None and kept.notes.get(NUMBER) == number else None
        done = search(replace(problem, start=here, progress=_reporting(problem, number, tried)), mix)
        element = Elements(dict(done.permutations[0]), dict(done.maps[0]))
        lacks = tried.lacks | {mix: ensemble.lacking(element)}
        better = Tried(lacks, element).mix == mix
        tried = Tried(lacks, element if better else tried.best)
        found = done if better or found is None else found
    perms, maps = (dict(tried.best.permutations),), (dict(tried.best.maps),)
    return replace(found, permutations=perms, maps=maps, mixed=tried.account())


class _Means:
    """How far the mean of both models is from the mean of what they give."""

    def __init__(self, problem: Problem):
        self.problem, device = problem, devices.for_search(problem.device)
        self.own = networks.duplicate(problem.network).float().to(device)
        ends = [holding(self.own, model) for model in problem.models]
        batches = list(_head(problem.data, SAMPLES))
        self.ensemble = Ensemble(ends, [0.5, 0.5], batches, problem.output, device=device)

    def lacking(self, element: Elements) -> float:
        first, second = self.problem.models
        mean = average([first, acts.acted(second, self.problem.fitted, element)])
        return self.ensemble.missing(networks.load(self.own, mean))


def _head(data: Iterable[Any], samples: int) -> Iterator[tuple[Any, Any]]:
    for inputs, targets in checked(data):
        size = min(samples, size_of(targets))
        yield head(inputs, size), head(targets, size)
        samples -= size
        if samples <= 0:
            return


def _reporting(problem: Problem, number: int, tried: Tried) -> Callable[[State], None]:
    """What a search reports, with all that is known of the mixes before it."""
    notes = {NUMBER: float(number)} | {f"{LACKS}{mix:g}": lacking for mix, lacking in tried.lacks.items()}
    tensors: dict[str, torch.Tensor] = {}
    if tried.lacks:
        tensors |= {f"{ORDER}{word}": perm for word, perm in tried.best.permutations.items()}
        tensors |= {f"{MAP}{word}": map_ for word, map_ in tried.best.maps.items()}

    def report(state: State) -> None:
        problem.report(replace(state, notes=state.notes | notes, tensors=state.tensors | tensors))

    return report


def _tried(kept: State | None) -> Tried:
    if kept is None:
        return Tried({}, Elements({}))
    lacks = {float(n.removeprefix(LACKS)): value for n, value in kept.notes.items() if n.startswith(LACKS)}

    def named(prefix: str) -> Mapping[str, torch.Tensor]:
        return {n.removeprefix(prefix): t for n, t in kept.tensors.items() if n.startswith(prefix)}

    return Tried(lacks, Elements(dict(named(ORDER)), {w: t.double() for w, t in named(MAP).items()}))
