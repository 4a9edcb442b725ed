"""How much activations count beside weights, where nobody says it: the mean model's outputs decide.

A search ends near where its share of activations leads it, and which share leads to the better merge differs
from pair to pair, and from word to word. So several are tried. The element is taken whose mean model comes
nearest to the mean of both models' outputs, and then, word by word, that of another share where it comes
nearer still. Labels are not needed for that: the samples are those that activations were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch

from ... import networks
from ...averages.means import average
from ...datasets.batches import First
from ...networks.state import duplicate
from ...repair.ensemble import Ensemble, holding
from ...runtime import devices
from ...spec.spec import FittedSpec
from ...symmetry import elements as acts
from ...symmetry import permutation
from ...symmetry.elements import Elements
from .. import MatchResult, Problem, State
from ..accounts import Mixed

MIXES = (0.3, 0.5, 0.7, 0.9, 1.0)
SAMPLES = 500  # at most, by which they are compared
NUMBER = "mix"  # the note of a kept state that says which of them is at work
BEFORE, AFTER = "objective before ", "objective after "  # how its other notes begin, by mix

Search = Callable[[Problem, float], MatchResult]


def choose(problem: Problem, search: Search) -> MatchResult:
    """What the searches for all `MIXES` find together; its account tells what each mean lacks.

    That is the mean square of what its outputs lack of the mean of both models' outputs. Of two as good as
    each other the first is taken; objectives are those of the search for the mix that lacks least. Kept
    states go on with the mix that was at work.
    """
    kept = problem.start
    done: dict[float, MatchResult] = {}
    for number, mix in enumerate(MIXES):
        if kept is not None and number < kept.notes.get(NUMBER, 0):
            done[mix] = _known(kept, mix)
            continue
        here = kept if kept is not None and kept.notes.get(NUMBER) == number else None
        done[mix] = search(replace(problem, start=here, progress=_reporting(problem, number, done)), mix)
    means = _Means(problem)
    elements = {mix: result.elements[0] for mix, result in done.items()}
    lacks = {mix: means.lacking(element) for mix, element in elements.items()}
    best = min(lacks, key=lacks.__getitem__)
    element, joined, words = _exchanged(problem.fitted, elements, best, lacks[best], means)
    account = Mixed(best, {f"{mix:g}": lack for mix, lack in lacks.items()}, joined, words)
    return replace(done[best], elements=(element,), account=account)


def _exchanged(
    fitted: FittedSpec, elements: Mapping[float, Elements], best: float, lacks: float, means: _Means
) -> tuple[Elements, float, dict[str, float]]:
    """The best element with those of other mixes for some words, what its mean lacks, and these words."""
    element = elements[best]
    words: dict[str, float] = {}
    for part in _parts(fitted):
        standing = element
        for mix, other in elements.items():
            changed = _with(fitted, standing, other, part)
            if _same(changed, standing, part):
                continue
            if (lacking := means.lacking(changed)) < lacks:
                element, lacks = changed, lacking
                words |= dict.fromkeys(part, mix)
    return element, lacks, words


def _parts(fitted: FittedSpec) -> list[tuple[str, ...]]:
    """Words that move together: heads with all words within them, and every other word alone."""
    parts: dict[str, list[str]] = {}
    for word in fitted.words:
        block = fitted.within.get(word)
        parts.setdefault(word if block is None or block.word is None else block.word, []).append(word)
    return [tuple(words) for words in parts.values()]


def _with(fitted: FittedSpec, element: Elements, other: Elements, words: Iterable[str]) -> Elements:
    """An element with another one's for some words."""
    perms, maps = dict(element.permutations), dict(element.maps)
    for word in words:
        perms[word] = other.permutations[word]
        maps.pop(word, None)
        maps |= {word: other.maps[word]} if word in other.maps else {}
    return Elements(permutation.carried(perms, fitted.within), maps)


def _same(one: Elements, other: Elements, words: Iterable[str]) -> bool:
    return all(
        torch.equal(a[word], b[word])
        for a, b in ((one.permutations, other.permutations), (one.maps, other.maps))
        for word in words
        if word in a and word in b
    )


class _Means:
    """How far the mean of both models is from the mean of what they give."""

    def __init__(self, problem: Problem):
        self.problem, device = problem, devices.for_search(problem.device)
        self.own = duplicate(problem.given_network).float().to(device)
        ends = [holding(self.own, model) for model in problem.models]
        batches = list(First(problem.given_data, SAMPLES))
        self.ensemble = Ensemble(ends, [0.5, 0.5], batches, problem.output, device=device)

    def lacking(self, element: Elements) -> float:
        first, second = self.problem.models
        mean = average([first, acts.acted(second, self.problem.fitted, element)])
        return self.ensemble.missing(networks.load(self.own, mean))


def _of(mix: float) -> str:
    return f"mix {mix:g} "


def _reporting(problem: Problem, number: int, done: Mapping[float, MatchResult]) -> Callable[[State], None]:
    """What a search reports, with all that the searches before it found."""
    notes = {NUMBER: float(number)}
    tensors: dict[str, torch.Tensor] = {}
    for mix, found in done.items():
        notes |= {f"{BEFORE}{mix:g}": found.objective_before, f"{AFTER}{mix:g}": found.objective_after}
        its = acts.tensors_of(found.elements[0])
        tensors |= {f"{_of(mix)}{name}": tensor for name, tensor in its.items()}

    def report(state: State) -> None:
        problem.report(replace(state, notes={**state.notes, **notes}, tensors={**state.tensors, **tensors}))

    return report


def _known(kept: State, mix: float) -> MatchResult:
    """What an earlier search had found, of a kept state."""
    before, after = (kept.notes[f"{name}{mix:g}"] for name in (BEFORE, AFTER))
    return MatchResult((acts.of_tensors(kept.named(_of(mix))),), before, after, 1, 1, True)
