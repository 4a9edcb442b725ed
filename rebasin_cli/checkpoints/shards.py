"""Which file of several a tensor is written to, and by which of several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from .destination import SUFFIX
from .safetensors_format import nbytes

Plan = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def by_size(plan: Plan, size: int | None) -> list[Plan]:
    """The plan cut into pieces of at most `size` bytes, names in sorted order."""
    shards: list[Plan] = [{}]
    filled = 0
    for name in sorted(plan):
        here = nbytes(*plan[name])
        if size is not None and shards[-1] and filled + here > size:
            shards.append({})
            filled = 0
        shards[-1][name] = plan[name]
        filled += here
    return shards


def by_layout(plan: Plan, layout: Mapping[str, str]) -> list[Plan]:
    """The plan as this layout divides it, by file names in sorted order."""
    shards: dict[str, Plan] = {file: {} for file in sorted(set(layout.values()))}
    for name in sorted(plan):
        shards[layout[name]][name] = plan[name]
    return list(shards.values())


def names(path: Path, count: int) -> list[str]:
    return [f"{path.stem}-{number:05d}-of-{count:05d}{SUFFIX}" for number in range(1, count + 1)]


def shares(files: Sequence[Plan], machines: Sequence[str]) -> list[list[frozenset[str]]]:
    """Of every rank, by its place on these `machines`, the tensors that it writes into each file.

    A file is written by the ranks of one machine, which share its pages in memory: on network disks two
    machines may overwrite what the other wrote beside. "" are ranks that do not see the files.
    """
    groups = [[r for r, its in enumerate(machines) if its == one] for one in sorted({*machines} - {""})]
    loads = {rank: 0 for group in groups for rank in group}
    found: list[list[set[str]]] = [[set() for _ in files] for _ in machines]
    sizes = [{name: nbytes(*planned) for name, planned in plan.items()} for plan in files]
    for k in sorted(range(len(files)), key=lambda k: -sum(sizes[k].values())):
        group = min(groups, key=lambda ranks: sum(loads[rank] for rank in ranks) / len(ranks))
        for name in sorted(files[k], key=lambda name: -sizes[k][name]):
            rank = min(group, key=lambda rank: loads[rank])
            loads[rank] += sizes[k][name]
            found[rank][k].add(name)
    return [[frozenset(names) for names in its] for its in found]
