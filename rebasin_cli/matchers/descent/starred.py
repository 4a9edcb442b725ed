"""Words that are coupled: blocks in an order, and within each block an order of its own.

A head of the reference and a head of the model are worth what their units are worth in the best order: an
assignment a pair of heads and starred word. One assignment of heads over these sums is then the best of all
orders of heads and units together (a wreath product of symmetric groups). That is exact where a pair's
worth does not depend on where other heads go. Tensors that carry two words of a group make it depend; what
they say is heard once the heads have an order, and the result is taken only if the objective rises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from itertools import permutations as orders
from typing import Protocol

import numpy as np
import torch

from ...spec.atoms import Atom
from ...spec.spec import Block
from ...symmetry import assignment, index_maps
from ...types import Permutations
from .pair import Pair

FEW = 4  # units, up to which all orders are tried at once


class Matrices(Protocol):
    """What makes the similarity matrix (n, n) of a word: `Pair` anew, `Similarities` from the last one."""

    def matrix(
        self, word: str, permutations: Permutations, *, chosen: Sequence[Atom] | None = None
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class Group:
    """Starred words and the word that they lie within; None where blocks stay."""

    outer: str | None
    starred: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        return (*((self.outer,) if self.outer else ()), *self.starred)


def groups(within: Mapping[str, Block]) -> dict[str, Group]:
    """The groups of coupled words, each by its first."""
    found: dict[str, tuple[str | None, list[str]]] = {}
    for word in sorted(within):
        outer = within[word].word
        found.setdefault(outer or word, (outer, []))[1].append(word)
    return {name: Group(outer, tuple(starred)) for name, (outer, starred) in found.items()}


def step(
    pair: Pair,
    similarities: Matrices,
    group: Group,
    current: Permutations,
    known: Set[str] | None = None,
) -> tuple[dict[str, torch.Tensor], float]:
    """The group's best permutations with all other words held, and what they gain as far as matrices tell.

    With `known`, only tensors speak whose other words are among these.
    """
    spoken = {
        word: pair.single[word] if known is None else pair.resting_on(word, known) for word in group.words
    }
    inner = {
        word: [atom for atom in atoms if len({*atom.words} & {*group.words}) > 1]
        for word, atoms in spoken.items()
    }
    matrices = {}
    for word, atoms in spoken.items():
        apart = [atom for atom in atoms if atom not in inner[word]]
        if apart or word != group.outer:
            matrices[word] = similarities.matrix(word, current, chosen=apart)
        if pair.double[word] and known is None:
            more = pair.matrix(word, current, chosen=pair.double[word])
            matrices[word] = matrices[word] + more if word in matrices else more
    trial = dict(current) | together(group.outer, matrices, pair.within)
    for word in sorted(group.starred, key=lambda word: len(spoken[word]) > len(inner[word])):
        if inner[word]:  # words that nothing else speaks of come first: the others' orders are known so far
            matrices[word] = matrices[word] + pair.matrix(word, trial, chosen=inner[word])
            trial[word] = inside(matrices[word], trial[word], pair.within[word])
    gained = sum(
        assignment.total(matrix, trial[word]) - assignment.total(matrix, current[word])
        for word, matrix in matrices.items()
    )
    return {word: trial[word] for word in group.words}, pair.ranks.agree(gained)


def reordered(pair: Pair, group: Group, current: Permutations) -> dict[str, torch.Tensor]:
    """Better orders within the blocks, which stay where they are: no change makes the objective fall."""
    found = dict(current)
    for word in group.starred:
        matrix = pair.matrix(word, found, chosen=pair.single[word] + pair.double[word])
        perm = inside(matrix, found[word], pair.within[word])
        if pair.gain(word, found, perm) > 0:
            found[word] = perm
    return {word: found[word] for word in group.words}


def quadratic(pair: Pair, group: Group) -> bool:
    """Whether what a word of the group is worth depends on the group's own permutations."""
    return any(
        pair.double[word] or any(len({*atom.words} & {*group.words}) > 1 for atom in pair.single[word])
        for word in group.words
    )


def gain(pair: Pair, current: Permutations, changes: Permutations) -> float:
    """What the objective gains by all changes together, measured in float64."""
    state, total = dict(current), 0.0
    for word, perm in changes.items():
        if not torch.equal(perm, state[word]):
            total += pair.gain(word, state, perm)
            state[word] = perm
    return total


def together(
    outer: str | None, similarities: Mapping[str, torch.Tensor], within: Mapping[str, Block]
) -> dict[str, torch.Tensor]:
    """The best permutations of a word and of the starred words within it.

    `similarities` has the matrix (n, n) of every starred word, over all units of all blocks, and that of
    `outer`, where anything but its blocks tells its units apart. Without an outer word, blocks stay.
    """
    starred = [word for word in similarities if word != outer]
    best = {word: _pairs(similarities[word], within[word]) for word in starred}
    count = next(within[word].count for word in starred)
    order = torch.arange(count)
    found = {}
    if outer is not None:
        values = reduce(torch.add, (value for value, _ in best.values()))
        if outer in similarities:
            values = values + similarities[outer].double().cpu()
        order = found[outer] = assignment.solve(values).perm
    for word, (_, inner) in best.items():
        found[word] = index_maps.join(order, inner[torch.arange(count), order])
    return found


def inside(similarity: torch.Tensor, perm: torch.Tensor, block: Block) -> torch.Tensor:
    """The best permutation of a starred word whose blocks lie as in this one."""
    order, _ = index_maps.split(perm, block)
    blocks = _blocks(similarity, block)[torch.arange(block.count), order]
    return index_maps.join(order, _solved(blocks)[1])


def _pairs(similarity: torch.Tensor, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """What each pair of blocks is worth (H, H), and the order that makes it so (H, H, D)."""
    h, d = block.count, block.size
    values, inner = _solved(_blocks(similarity, block).reshape(h * h, d, d))
    return values.view(h, h), inner.view(h, h, d)


def _blocks(similarity: torch.Tensor, block: Block) -> torch.Tensor:
    """(n, n) → (H, H, D, D): reference block × model block × units of either."""
    h, d = block.count, block.size
    return similarity.cpu().reshape(h, d, h, d).transpose(1, 2)


def _solved(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best value (m,) and order (m, D) of each of (m, D, D)."""
    size = matrices.shape[-1]
    if size <= FEW:
        every = np.array(list(orders(range(size))))
        worth = matrices.double().numpy()[:, np.arange(size), every].sum(-1)
        first = worth.argmax(1)  # the lexicographically first of equals
        return torch.from_numpy(worth.max(1)), torch.from_numpy(every[first])
    found = [assignment.solve(matrix).perm for matrix in matrices.contiguous()]
    values = [assignment.total(matrix, perm) for matrix, perm in zip(matrices, found, strict=True)]
    return torch.tensor(values, dtype=torch.float64), torch.stack(found)
