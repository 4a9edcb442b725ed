"""Similarity matrices that follow the search: kept between solves, and changed where a neighbour moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ...spec.atoms import Atom
from ...types import Permutations
from .pair import Pair

GROUP = 1 << 25  # bytes of matrices that are not kept and yet held together, if more than one
KEEP = 1 << 26  # bytes of matrices that are kept between solves, beside one of the largest


@dataclass(frozen=True)
class Basis:
    """What a matrix was made from: the atoms that are in it, and the permutations of the other words."""

    atoms: tuple[Atom, ...]
    at: dict[str, torch.Tensor]

    @classmethod
    def standing(cls, pair: Pair, word: str, atoms: Sequence[Atom], permutations: Permutations) -> Basis:
        """Of a matrix made from these atoms as the permutations stand."""
        return cls(tuple(atoms), {other: permutations[other] for other in sorted(pair.neighbours[word])})

    def holds(self, permutations: Permutations) -> bool:
        """Whether the words in it stand as they stood."""
        others = self.at.keys() & {word for atom in self.atoms for word in atom.words}
        return all(torch.equal(self.at[word], permutations[word]) for word in others)


class Similarities:
    """The similarity matrix of any word as the permutations stand, made anew or brought up to date.

    What fits into `memory` bytes is kept, small matrices first: they are asked for as often as large ones.
    By default these are 64 MB and one of the largest.
    """

    def __init__(self, pair: Pair, memory: int | None = None):
        self.pair = pair
        if memory is None:
            memory = KEEP + pair.dtype.itemsize * max(pair.words.values(), default=0) ** 2
        self.bases: dict[str, Basis] = {}  # of every word's last matrix, kept or not
        self._kept: dict[str, torch.Tensor] = {}
        self._keeps = kept_words(pair.words, pair.dtype.itemsize, memory)

    def together(self, words: Sequence[str]) -> list[list[str]]:
        """Words in groups whose matrices may be held at a time: what is not kept is soon too much."""
        groups: list[list[str]] = []
        left = 0
        for word in words:
            size = 0 if word in self._keeps else self.pair.dtype.itemsize * self.pair.words[word] ** 2
            if not groups or size > left:
                groups.append([])
                left = GROUP
            groups[-1].append(word)
            left -= size
        return groups

    def matrix(
        self, word: str, permutations: Permutations, *, chosen: Sequence[Atom] | None = None
    ) -> torch.Tensor:
        """From `chosen`, or from all atoms that carry the word once; not to be written to."""
        pair = self.pair
        wanted = pair.single[word] if chosen is None else list(chosen)
        matrix, basis = self._kept.get(word), self.bases.get(word)
        if matrix is None or basis is None or not {*basis.atoms} <= {*wanted}:
            # what is in a matrix cannot be taken out
            matrix = pair.matrix(word, permutations, chosen=wanted)
        else:
            self._update(matrix, basis, word, permutations)
            present = {*basis.atoms}
            if missing := [atom for atom in wanted if atom not in present]:
                pair.matrix(word, permutations, chosen=missing, out=matrix)
        self.bases[word] = Basis.standing(pair, word, wanted, permutations)
        if word in self._keeps:
            self._kept[word] = matrix
        return matrix

    def forget(self, words: Iterable[str]) -> None:
        """Make these words' matrices anew: tensors have other values now."""
        for word in words:
            self.bases.pop(word, None)
            self._kept.pop(word, None)

    def _update(self, matrix: torch.Tensor, basis: Basis, word: str, permutations: Permutations) -> None:
        pair, before = self.pair, {**permutations, **basis.at}
        moved = [w for w in basis.at if not torch.equal(before[w], permutations[w])]
        work = 0.0  # numbers to multiply, a column of the matrix
        for other in moved:
            share = (before[other] != permutations[other]).double().mean().item()
            work += share * pair.columns([atom for atom in basis.atoms if other in atom.words], word)
        if work > pair.columns(basis.atoms, word):
            pair.matrix(word, permutations, chosen=basis.atoms, out=matrix.zero_())
            return
        for other in moved:  # one after the other: each step is exact with the rest as it then stands
            pair.change(matrix, word, basis.atoms, other, before, permutations[other])
            before[other] = permutations[other]


def kept_words(words: Mapping[str, int], itemsize: int, memory: int) -> set[str]:
    """The words whose matrices fit into `memory` bytes together, small ones first."""
    keeps, left = set(), memory
    for word in sorted(words, key=lambda w: (words[w], w)):
        left -= itemsize * words[word] ** 2
        if left < 0:
            break
        keeps.add(word)
    return keeps
