"""A search with groups as a method gives it: its state kept, its result as others' results."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...errors import UsageError
from ...groups.elements import Elements
from .. import MatchResult, Problem, State
from .search import search

MAP = "map "  # how the name of a kept state's tensor begins that is a word's map


def match(
    problem: Problem,
    max_sweeps: int,
    start: Elements | None = None,
    shares: Mapping[str, float | None] | None = None,
) -> MatchResult:
    """Elements for the one model beside the reference; `start` is where a search that begins anew begins.

    `shares` are the factors of tensors in the objective, where they are not the search's own. Raises
    UsageError unless there are exactly two models.
    """
    if len(problem.models) != 2:
        raise UsageError(f"a search with groups matches two models, not {len(problem.models)}")
    kept = problem.start
    if kept is not None:
        start = Elements(kept.permutations[0], _maps(kept.tensors))

    def report(sweeps: int, objective: float, element: Elements) -> None:
        tensors = {f"{MAP}{word}": map_.clone() for word, map_ in element.maps.items()}
        problem.report(State((dict(element.permutations),), sweeps, objective, tensors=tensors))

    found = search(
        *problem.models,
        problem.fitted,
        seed=problem.seed,
        max_sweeps=max_sweeps,
        begun=0 if kept is None else kept.sweep,
        start=start,
        report=report,
        shares=shares,
    )
    return MatchResult(
        (dict(found.element.permutations),),
        found.before,
        found.after,
        found.sweeps,
        found.solves,
        found.converged,
        maps=(dict(found.element.maps),),
    )


def _maps(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n.removeprefix(MAP): t.double() for n, t in tensors.items() if n.startswith(MAP)}
