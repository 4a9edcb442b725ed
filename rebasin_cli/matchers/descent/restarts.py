"""A search with groups as a method gives it: restarted where asked for, kept, its result as others' are.

Coordinate descent ends near where it begins: a restart begins from a random element, and of all searches the
one of the best objective is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...errors import UsageError
from ...runtime.seeds import derive, generator
from ...spec.groups import PLANES
from ...spec.spec import FittedSpec
from ...symmetry import elements as acts
from ...symmetry.elements import Elements
from .. import MatchResult, Problem, State
from .group_search import Found, search

MAP = "map "  # how the name of a kept state's tensor begins that is a word's map
BEST, BEST_MAP = "best order ", "best map "  # … of the best search before the one at work
BALANCED = {"GL": "O", "monomial": "signed", "scaled": "permutation"}  # what a balance leaves of a group


@dataclass(frozen=True)
class Best:
    """The best search so far."""

    element: Elements
    objective: float

    def state(self) -> dict[str, torch.Tensor]:
        orders = {f"{BEST}{word}": perm for word, perm in self.element.permutations.items()}
        return orders | {f"{BEST_MAP}{word}": map_ for word, map_ in self.element.maps.items()}


def match(
    problem: Problem,
    max_sweeps: int,
    start: Elements | None = None,
    shares: Mapping[str, float | None] | None = None,
    restarts: int = 0,
) -> MatchResult:
    """Elements for the one model beside the reference; `start` is where a search that begins anew begins.

    `shares` are the factors of tensors in the objective, where they are not the search's own; `restarts` so
    many more searches. Raises UsageError unless there are exactly two models.
    """
    if len(problem.models) != 2:
        raise UsageError(f"a search with groups matches two models, not {len(problem.models)}")
    kept, solves = problem.start, 0
    best = _best(kept)
    first = 0 if kept is None else int(kept.notes.get("search", 0))
    for number in range(first, restarts + 1):
        seed, begun = problem.seed, 0
        if number:
            seed = derive(problem.seed, f"groups restart {number}")
            start = drawn(problem.fitted, generator(seed, "element"))
        if kept is not None and number == first:
            start, begun = kept.elements[0], kept.sweep

        def report(
            sweeps: int, objective: float, element: Elements, at: int = number, before: Best | None = best
        ) -> None:
            tensors = {} if before is None else before.state()
            most = objective if before is None else max(objective, before.objective)
            notes = {"search": float(at)} | ({} if before is None else {"best": before.objective})
            problem.report(State((element,), sweeps, most, notes, tensors))

        found = search(
            *problem.models,
            problem.fitted,
            seed=seed,
            max_sweeps=max_sweeps,
            begun=begun,
            start=start,
            report=report,
            shares=shares,
        )
        solves += found.solves
        if best is None or found.after > best.objective:
            best = Best(found.element, found.after)
    return _result(found, best or Best(found.element, found.after), solves)


def drawn(fitted: FittedSpec, rng: torch.Generator) -> Elements:
    """A random element that leaves a canonical form's balances as they are."""
    kinds = {word: fitted.groups.get(word, "permutation") for word in fitted.words}
    found = acts.random(fitted, rng, of={word: BALANCED.get(kind, kind) for word, kind in kinds.items()})
    maps = {w: m / m.norm(dim=-2, keepdim=True) if kinds[w] in PLANES else m for w, m in found.maps.items()}
    return Elements(found.permutations, maps)


def _result(last: Found, best: Best, solves: int) -> MatchResult:
    return MatchResult(
        (best.element,),
        last.before,
        best.objective,
        last.sweeps,
        solves,
        last.converged,
    )


def _best(kept: State | None) -> Best | None:
    if kept is None or "best" not in kept.notes:
        return None
    orders = {n.removeprefix(BEST): t for n, t in kept.tensors.items() if n.startswith(BEST)}
    return Best(Elements(orders, _maps(kept.tensors, BEST_MAP)), kept.notes["best"])


def _maps(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(prefix): t.double() for n, t in tensors.items() if n.startswith(prefix)}
