"""A search over many models by a method that takes two: one model after the other, with one state of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import MatchResult, Problem, State

FIGURES = ("objective_before", "objective_after", "sweeps", "solves", "converged")
CASTS = (float, float, int, int, bool)


def search(module: Any, problem: Problem, options: Any, start: State | None) -> MatchResult:
    """One search over all models, or one per model for methods that take two.

    The objective is the sum over these, or where it is a loss their mean.

    The state of several searches holds the finished models' permutations and, last, those of the current one;
    its notes hold the finished ones' figures, and as "model" which of the models is at work, from 2.
    """
    if module.MANY or len(problem.models) == 2:
        return module.match(replace(problem, start=start), options)
    parts: list[MatchResult] = []
    begun = start.permutations if start else ()
    notes = {} if start is None else {k: v for k, v in start.notes.items() if k.startswith("model ")}
    for k, model in enumerate(problem.models[1:]):
        if k < len(begun) - 1:  # finished before the interruption
            figures = (notes[f"model {k} {name}"] for name in FIGURES)
            parts.append(MatchResult((begun[k],), *(cast(v) for cast, v in zip(CASTS, figures, strict=True))))
            continue
        finished = tuple(part.permutations[0] for part in parts)

        def report(state: State, finished: tuple = finished, notes: Mapping = dict(notes)) -> None:
            sets = (*finished, *state.permutations)
            own = {"model": float(len(sets) + 1)}
            problem.report(replace(state, permutations=sets, notes={**state.notes, **notes, **own}))

        pair = replace(
            problem,
            models=(problem.models[0], model),
            start=replace(start, permutations=(begun[k],)) if k < len(begun) else None,
            progress=report,
        )
        parts.append(module.match(pair, options))
        notes |= {f"model {k} {name}": float(getattr(parts[-1], name)) for name in FIGURES}
    learnt = hasattr(options, "learning_rate")  # then the objective is a loss, and sweeps are steps
    share = 1 / len(parts) if learnt else 1
    return MatchResult(
        tuple(part.permutations[0] for part in parts),
        share * sum(part.objective_before for part in parts),
        share * sum(part.objective_after for part in parts),
        (sum if learnt else max)(part.sweeps for part in parts),
        sum(part.solves for part in parts),
        all(part.converged for part in parts),
        history=tuple({"model": k + 2, **row} for k, part in enumerate(parts) for row in part.history),
    )
