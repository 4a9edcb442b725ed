"""Similarity matrices that follow the search: kept between solves, and changed where a neighbour moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..permutation import Permutations
from ..spec.atoms import Atom
from ._pair import Pair

GROUP = 1 << 25  # bytes of matrices that are not kept and yet held together, if more than one
KEEP = 1 << 26  # bytes of matrices that are kept between solves, beside one of the largest


@dataclass
class Kept:
    """A matrix, the atoms that are in it, and the permutations of the other words it was made with."""

    matrix: torch.Tensor
    atoms: list[Atom]
    at: dict[str, torch.Tensor]


class Similarities:
    """The similarity matrix of any word as the permutations stand, made anew or brought up to date.

    What fits into `memory` bytes is kept, small matrices first: they are asked for as often as large ones.
    By default these are 64 MB and one of the largest.
    """

    def __init__(self, pair: Pair, memory: int | None = None):
        self.pair = pair
        if memory is None:
            memory = KEEP + pair.dtype.itemsize * max(pair.words.values(), default=0) ** 2
        self._kept: dict[str, Kept] = {}
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
        kept = self._kept.get(word)
        if kept is not None and not {*kept.atoms} <= {*wanted}:
            kept = None  # what is in it cannot be taken out
        if kept is None:
            kept = Kept(pair.matrix(word, permutations, chosen=wanted), list(wanted), {})
        else:
            self._update(kept, word, permutations)
            present = {*kept.atoms}
            if missing := [atom for atom in wanted if atom not in present]:
                pair.matrix(word, permutations, chosen=missing, out=kept.matrix)
                kept.atoms += missing
        kept.at = {other: permutations[other] for other in pair.neighbours[word]}
        if word in self._keeps:
            self._kept[word] = kept
        return kept.matrix

    def _update(self, kept: Kept, word: str, permutations: Permutations) -> None:
        pair, before = self.pair, {**permutations, **kept.at}
        moved = [w for w in sorted(kept.at) if not torch.equal(before[w], permutations[w])]
        work = 0.0  # numbers to multiply, a column of the matrix
        for other in moved:
            share = (before[other] != permutations[other]).double().mean().item()
            work += share * pair.columns([atom for atom in kept.atoms if other in atom.words], word)
        if work > pair.columns(kept.atoms, word):
            pair.matrix(word, permutations, chosen=kept.atoms, out=kept.matrix.zero_())
            return
        for other in moved:  # one after the other: each step is exact with the rest as it then stands
            pair.change(kept.matrix, word, kept.atoms, other, before, permutations[other])
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
