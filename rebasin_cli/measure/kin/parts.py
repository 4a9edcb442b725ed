"""The tensors of two models, axes that units move along last, without what all networks have alike."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...spec.atoms import Atom
from ...spec.spec import Block
from .sampled import Sample

FLAT = 1e-5  # deviations below this, of a tensor's own size, are rounding
FULL = 2  # times as many values as are not 0: so many zeros are looked at among them


@dataclass(frozen=True)
class Part:
    """A part of a tensor in both models, (c, n₁, n₂ …): `words` permute all axes but the first.

    Along these it is centred; the first has all positions that stay.
    """

    tensor: str
    words: tuple[str, ...]
    x: Tensor
    y: Tensor
    spread: Tensor | None = None  # y not centred, where a view is mostly zeros that are no tensor's

    @cached_property
    def entries(self) -> tuple[Tensor, dict[int, Tensor], tuple[int, ...]]:
        """Of y, not centred: all values that are not 0, their places along axes, and axes that are full.

        The values (entries, …) have the full axes last, and the places are those along each of the others.
        Against what is centred, their inner product is that of y centred, in whatever order.
        """
        view = self.y if self.spread is None else self.spread
        there = view != 0
        most = FULL * int(there.sum())
        full: list[int] = []
        for dim in range(view.ndim):
            some = there.any(dim, keepdim=True).expand_as(there)
            if int(some.sum()) <= most:
                full.append(dim)
                there = some
        others = [dim for dim in range(view.ndim) if dim not in full]
        view, there = (each.permute(*others, *full) for each in (view, there))
        for _ in full:
            there = there.select(-1, 0)
        places = there.nonzero(as_tuple=True)
        return view[places], dict(zip(others, places, strict=True)), tuple(full)


def parts_of(
    found: Sample, own: Sequence[Atom], held: Mapping[str, str], within: Mapping[str, Block]
) -> tuple[list[Part], dict[str, str]]:
    """Both models tensor by tensor, centred and of norm 1; and what has nothing of a unit's own."""
    parts: list[Part] = []
    left: dict[str, str] = {}
    known: dict[tuple[object, ...], list[tuple[str, list[Part]]]] = defaultdict(list)
    for name, group in itertools.groupby(own, key=lambda atom: atom.tensor):
        mine = [p for atom in group if (p := _part(found, atom, held, within)) is not None]
        size = [
            math.sqrt(sum(inner(v, v) for v in each)) for each in ([p.x for p in mine], [p.y for p in mine])
        ]
        raw = [float(model[name].norm()) for model in (found.a, found.b)]
        if not mine:
            left[name] = "its units are held in place"
            continue
        if any(s <= FLAT * r for s, r in zip(size, raw, strict=True)):
            left[name] = "alike for all units"
            continue
        mine = [
            replace(
                p, x=p.x / size[0], y=p.y / size[1], spread=None if p.spread is None else p.spread / size[1]
            )
            for p in mine
        ]
        sort = tuple((p.words, tuple(p.x.shape)) for p in mine)
        tied = next((other for other, its in known[sort] if _equal(mine, its)), None)
        if tied is not None:
            left[name] = f"the same as {tied}"
            continue
        known[sort].append((name, mine))
        parts += mine
    return parts, left


def _equal(one: Sequence[Part], other: Sequence[Part]) -> bool:
    return all(torch.equal(p.x, q.x) and torch.equal(p.y, q.y) for p, q in zip(one, other, strict=True))


def _part(found: Sample, atom: Atom, held: Mapping[str, str], within: Mapping[str, Block]) -> Part | None:
    """One atom of both; None where all its axes stay."""
    words = [None if word in held else word for word in atom.words]
    moving = sorted((dim for dim, word in enumerate(words) if word is not None), key=lambda d: str(words[d]))
    if not moving:
        return None
    both = []
    for model in (found.a, found.b):
        x = atom.view(model[atom.tensor])
        order = [*(dim for dim in range(x.ndim) if dim not in moving), *moving]
        x = x.permute(order)
        both.append(x.reshape(-1, *x.shape[x.ndim - len(moving) :]))
    spread = both[1] if 2 * found.b[atom.tensor].numel() < both[1].numel() else None
    x, y = (_centred(each, [str(words[dim]) for dim in moving], within) for each in both)
    names = tuple(str(words[dim]) for dim in moving)
    if x.ndim == 3 and x.shape[1] == x.shape[2] and names[0] != names[1]:
        x = _without_diagonal(x)
    return Part(atom.tensor, names, x, y, spread)


def _centred(x: Tensor, words: Sequence[str], within: Mapping[str, Block]) -> Tensor:
    for dim, word in enumerate(words, start=1):
        block = within.get(word)
        if block is None or block.word is not None:
            x = x - x.mean(dim, keepdim=True)
        else:  # the blocks stay
            split = x.unflatten(dim, (block.count, block.size))
            x = (split - split.mean(dim + 1, keepdim=True)).flatten(dim, dim + 1)
    return x


def _without_diagonal(x: Tensor) -> Tensor:
    """Centred matrices (c, n, n) without the identity, which some networks begin with: of A alone.

    B may then lie in any order as before.
    """
    n = x.shape[1]
    if n < 2:
        return x
    trace = x.diagonal(dim1=1, dim2=2).sum(1) / (n - 1)
    return x - trace[:, None, None] * (torch.eye(n) - 1 / n)


def inner(x: Tensor, y: Tensor) -> float:
    return float(torch.dot(x.flatten(), y.flatten()))


def merged(parts: Sequence[Part]) -> list[Part]:
    """Parts that the same words permute as one."""
    groups: dict[tuple[str, ...], list[Part]] = defaultdict(list)
    for part in parts:
        groups[part.words].append(part)
    return [
        Part(
            "",
            words,
            torch.cat([p.x for p in its]),
            torch.cat([p.y for p in its]),
            None
            if any(p.spread is None for p in its)
            else torch.cat([p.spread for p in its if p.spread is not None]),
        )
        for words, its in groups.items()
    ]
