"""A search over many models by a method that takes two: one model after the other, with one state of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from ...symmetry.elements import Elements
from .. import MatchResult, Problem, State
from ..accounts import Begun, Learned
from ..straight_through.history import packed, unpacked
from . import listed

FIGURES = ("objective_before", "objective_after", "sweeps", "solves", "converged")

T = TypeVar("T")


def search(module: Any, problem: Problem, options: Any, start: State | None) -> MatchResult:
    """One search over all models, or one per model for methods that take two.

    The objective is the sum over these. Of a method that learns it is the loss at the mean of all models,
    which is what is merged: before, with every model where its search began.

    The state of several searches holds the finished models' elements and, last, those of the current one;
    its notes hold the finished ones' figures, its tensors what these saw of held-out samples. Elements
    without figures are where a search starts.
    """
    if problem.fitted.stacks and module.NEEDS:
        return listed.search(module, problem, options, start, search)
    if module.MANY or len(problem.models) == 2:
        alone: MatchResult = module.match(replace(problem, start=start), options)
        return alone
    parts: list[MatchResult] = []
    begun = start.elements if start else ()
    notes: dict[str, float] = {} if start is None else _finished(start.notes)
    looks: dict[str, torch.Tensor] = {} if start is None else _finished(start.tensors)
    for k, model in enumerate(problem.models[1:]):
        figures = [notes[name] for name in (f"model {k} {figure}" for figure in FIGURES) if name in notes]
        if k < len(begun) - 1 and len(figures) == len(FIGURES):  # finished before the interruption
            seen = unpacked(looks[f"model {k} history"]) if f"model {k} history" in looks else ()
            before, after, sweeps, solves, converged = figures
            parts.append(
                MatchResult(
                    (begun[k],),
                    before,
                    after,
                    int(sweeps),
                    int(solves),
                    bool(converged),
                    account=Learned(None, seen) if seen else None,
                )
            )
            continue
        finished = tuple(part.elements[0] for part in parts)
        place = {"model": float(k + 2), "models": float(len(problem.models))}
        report = partial(_report, problem, finished, notes | place, dict(looks))
        first = None
        if start is not None and k < len(begun):  # what else is kept is of the last one
            first = State((begun[k],)) if k < len(begun) - 1 else replace(start, elements=(begun[k],))
        pair = replace(problem, models=(problem.models[0], model), start=first, progress=report)
        parts.append(module.match(pair, options))
        notes |= {f"model {k} {name}": float(getattr(parts[-1], name)) for name in FIGURES}
        if isinstance(looked := parts[-1].account, Learned) and looked.history:
            looks[f"model {k} history"] = packed(looked.history)
    learnt = hasattr(options, "learning_rate")  # then the objective is a loss, and sweeps are steps
    found = tuple(part.elements[0] for part in parts)
    if learnt:
        given = start is not None and not start.tensors  # these are starts, else they are what was found
        begun = begun if given else ()
        rest = replace(problem, models=(problem.models[0], *problem.models[1 + len(begun) :]))
        firsts = [element.permutations for element in begun]
        firsts += module.initial(rest, options) if len(rest.models) > 1 else ()
        orders = [element.permutations for element in found]
        before, after = (module.objective(problem, options, perms) for perms in (firsts, orders))
    else:
        before = sum(part.objective_before for part in parts)
        after = sum(part.objective_after for part in parts)
    return MatchResult(
        found,
        before,
        after,
        (sum if learnt else max)(part.sweeps for part in parts),
        sum(part.solves for part in parts),
        all(part.converged for part in parts),
        account=_account(parts),
    )


def _account(parts: Sequence[MatchResult]) -> Begun | None:
    """Of all searches: what they looked at, and where they began if that is the same of all that say so."""
    begun = [(k, part.account) for k, part in enumerate(parts) if isinstance(part.account, Begun)]
    inits = {account.init for _, account in begun if account.init}  # those that had ended do not say
    init = inits.pop() if len(inits) == 1 else None
    learned = [(k, account) for k, account in begun if isinstance(account, Learned)]
    history = tuple({"model": k + 2, **row} for k, account in learned for row in account.history)
    return Learned(init, history) if history else Begun(init) if init else None


def _report(
    problem: Problem,
    finished: tuple[Elements, ...],
    notes: Mapping[str, float],
    looks: Mapping[str, torch.Tensor],
    state: State,
) -> None:
    """The state of all searches, of which the last is in this one."""
    elements = (*finished, *state.elements)
    all_notes, tensors = {**state.notes, **notes}, {**state.tensors, **looks}
    problem.report(replace(state, elements=elements, notes=all_notes, tensors=tensors))


def _finished(kept: Mapping[str, T]) -> dict[str, T]:
    """What a state keeps of searches that have ended."""
    return {name: value for name, value in kept.items() if name.startswith("model ")}
