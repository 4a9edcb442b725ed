"""The state of a search: what goes on from it does what the whole search would have done, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import State
from .history import LOOKED, packed, unpacked
from .starting import STARTS

if TYPE_CHECKING:
    from .search import Run


def state_of(run: Run) -> State:
    """Where a run stands, and the figures that are shown of it."""
    found = {name: value for name, value in run.history[-1].items() if name in LOOKED}
    total = {"steps": float(run.length * run.options.epochs)} if run.length else {}
    place = {
        "position": float(run.followers.queue.position),
        "credit": run.followers.queue.credit,
        "quota": run.quota,
        "looked": float(run.looked),
        "init": float(STARTS.index(run.init)),
        "solves": float(run.solves + run.followers.solves),
    }
    tensors = {
        f"at.{k}.{word}": perm
        for k, perms in enumerate(run.followers.permutations)
        for word, perm in perms.items()
    }
    for k, (dummy, optimizer) in enumerate(zip(run.dummies, run.optimizers, strict=True)):
        tensors[f"dummy.{k}"] = dummy
        tensors |= {f"optimizer.{k}.{name}": value for name, value in optimizer.state.items()}
    tensors["history"] = packed(run.history)
    if run.turning is not None:
        tensors |= run.turning.kept(run.followers.projections)
    notes = {**run.notes, **found, **total, **place}
    return State(run.best, run.done, run.objective, notes, tensors)


def resume(run: Run, start: State) -> None:
    """Put a run that has just begun to where `start` was taken; raises KeyError for what that lacks."""
    kept, run.done, run.objective = start.tensors, start.sweep, start.objective
    run.best = tuple(dict(perms) for perms in start.permutations)
    if run.turning is not None:
        run.turning.resume(kept, run.best)
    run.followers.place(
        [
            {word: kept[f"at.{k}.{word}"] for word in perms}
            for k, perms in enumerate(run.followers.permutations)
        ]
    )
    if run.turning is not None:
        run.turning.resume_signs(kept, run.followers.projections)
    for k, (dummy, optimizer) in enumerate(zip(run.dummies, run.optimizers, strict=True)):
        dummy.copy_(kept[f"dummy.{k}"])
        prefix = f"optimizer.{k}."
        optimizer.resume(
            {name.removeprefix(prefix): t for name, t in kept.items() if name.startswith(prefix)}
        )
    run.history = [*unpacked(kept["history"])]
    run.init = STARTS[int(start.notes["init"])]
    run.solves = int(start.notes["solves"])
    queue = run.followers.queue
    queue.position, queue.credit = int(start.notes["position"]), start.notes["credit"]
    run.quota = start.notes["quota"]
    run.looked = int(start.notes["looked"])
    run.notes = {name: start.notes[name] for name in ("loss", "changed")}
