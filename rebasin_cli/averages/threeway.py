"""A three-way merge of named tensors, as git merges lines: what one side changed since the ancestor is taken.

A tensor has changed where its dtype, its shape or any bit of its values has. What both sides changed is
mixed, or a conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checkpoints.tensors import LazyTensors, plan_of, rows
from ..errors import unknown
from .combining import planned, same
from .mean import mean_of
from .parts import running_statistics, show

Tensors = Mapping[str, Tensor]

BOTH = ("average", "sum", "ours", "theirs", "conflict")
COUNTER = "num_batches_tracked"  # of a norm: the larger one has seen more
WEIGHTS = {"average": (0.5, 0.5, 0.0), "sum": (1.0, 1.0, -1.0)}  # of ours, theirs, the ancestor


@dataclass(frozen=True)
class ThreeWay:
    """Where every tensor comes from ("ours", "theirs", "average", "sum"); what conflicts, and why."""

    taken: dict[str, str]
    conflicts: dict[str, str]
    removed: tuple[str, ...] = ()


def three_way(
    base: Tensors, ours: Tensors, theirs: Tensors, *, both: str | None = None, statistics: bool = False
) -> ThreeWay:
    """Compare both sides with their ancestor, which is empty where there is none.

    `both` says what becomes of what both changed: "average", "sum" (ours + theirs − base, so both changes in
    full), "ours", "theirs" or "conflict"; None is "average", and "conflict" without an ancestor: nothing says
    then that they share a basin. `statistics` lets running statistics be mixed, too.
    """
    if both is not None and both not in BOTH:
        raise unknown("choice for --both", both, BOTH)
    both = both or ("average" if len(base) else "conflict")
    plans = {"base": plan_of(base), "ours": plan_of(ours), "theirs": plan_of(theirs)}
    norms = set() if statistics else {*running_statistics([*{**plans["ours"], **plans["theirs"]}])}
    taken: dict[str, str] = {}
    conflicts: dict[str, str] = {}
    removed: list[str] = []
    for name in dict.fromkeys([*plans["ours"], *plans["theirs"], *plans["base"]]):
        if same(ours, theirs, name) or same(base, theirs, name):
            side = "ours"
        elif same(base, ours, name):
            side = "theirs"
        else:
            side, why = _of_both(name, plans, ours, theirs, both, norms)
            if why:
                conflicts[name] = why
                continue
        if name in (theirs if side == "theirs" else ours):
            taken[name] = side
        else:
            removed.append(name)
    return ThreeWay(taken, conflicts, tuple(removed))


def _of_both(
    name: str,
    plans: Mapping[str, Mapping[str, tuple[torch.dtype, tuple[int, ...]]]],
    ours: Tensors,
    theirs: Tensors,
    both: str,
    norms: Collection[str],
) -> tuple[str, str]:
    """What becomes of a tensor that both changed, and why that is a conflict, "" where it is none."""
    there = [side for side in ("ours", "theirs") if name in plans[side]]
    if both in ("ours", "theirs"):
        return both, ""
    if len(there) == 1:
        return "", f"changed by {there[0]}, removed by {'theirs' if there == ['ours'] else 'ours'}"
    one, other = plans["ours"][name], plans["theirs"][name]
    if name.rpartition(".")[2] == COUNTER and one == other and one[1] == ():
        return ("ours" if ours[name] >= theirs[name] else "theirs"), ""
    since = "changed by both" if name in plans["base"] else "added by both, with other values"
    if both == "conflict":
        return "", since
    if one[1] != other[1]:
        return "", f"{since}: {show(one)} in ours, {show(other)} in theirs"
    if not all(dtype.is_floating_point or dtype.is_complex for dtype, _ in (one, other)):
        return "", f"{since}, and integers cannot be mixed"
    if name in norms:
        return "", f"{since}, and mixed running statistics describe no model (--repair none mixes them)"
    if both == "sum" and plans["base"].get(name, ((), None))[1] != one[1]:
        return "", f"{since}, and no ancestor tells by how much"
    return both, ""


def mixed(base: Tensors, ours: Tensors, theirs: Tensors, found: ThreeWay) -> LazyTensors:
    """The tensors of a merge without conflicts, each made when it is asked for; ours decide dtypes."""
    side_of = {name: theirs if side == "theirs" else ours for name, side in found.taken.items()}
    plan = {name: planned(side, name) for name, side in side_of.items()}

    def made(name: str, start: int | None, stop: int | None) -> Tensor:
        def take(model: Tensors) -> Tensor:
            return model[name] if start is None else rows(model, name, start, stop)

        if (weights := WEIGHTS.get(found.taken[name])) is None:
            return take(side_of[name])
        parts = [(model, w) for model, w in zip((ours, theirs, base), weights, strict=True) if w]
        return mean_of([take(model) for model, _ in parts], [w for _, w in parts], plan[name][0])

    return LazyTensors(
        {name: shape for name, (_, shape) in plan.items()},
        {name: dtype for name, (dtype, _) in plan.items()},
        lambda name: made(name, None, None),
        made,
    )


def merged_text(
    base: Mapping[str, str], ours: Mapping[str, str], theirs: Mapping[str, str]
) -> dict[str, str]:
    """Metadata by the same rule; where both changed an entry, ours stays."""
    found = {}
    for key in dict.fromkeys([*ours, *theirs]):
        kept = theirs if ours.get(key) == base.get(key) else ours
        if key in kept:
            found[key] = kept[key]
    return found
