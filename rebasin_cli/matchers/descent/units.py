"""What moves in one step of the search: one word with a group, or heads with all the words within them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ...spec.atoms import Atom
from ...spec.groups import MATRICES, PERMUTATION
from ...spec.spec import FittedSpec
from ...symmetry import projection
from ...types import Permutations
from . import starred
from .pair import Pair


@dataclass(frozen=True)
class Step:
    """An element, word by word, and what the objective gains by it, where the rest stays as it is."""

    perms: dict[str, torch.Tensor]
    maps: dict[str, torch.Tensor]
    gain: float


@dataclass(frozen=True)
class Unit:
    """`words` move together; `outer` are the heads among them, None where a number of them stays."""

    words: tuple[str, ...]
    outer: str | None = None
    starred: tuple[str, ...] = ()

    def quadratic(self, pair: Pair) -> bool:
        """Whether what an element is worth depends on the element itself."""
        return any(
            pair.double[word] or any(len({*atom.words} & {*self.words}) > 1 for atom in pair.single[word])
            for word in self.words
        )

    def step(
        self, pair: Pair, fitted: FittedSpec, current: Permutations, known: Collection[str] | None = None
    ) -> Step:
        """The best element on the atoms whose other words are `known` (None: all)."""
        if self.starred:
            return self._heads(pair, fitted, current, known)
        (word,) = self.words
        whole, ordered = _matrices(pair, word, current, known)
        kind = fitted.groups[word]
        found = projection.project(whole, kind, order=ordered)
        before = whole.double().trace() + (0 if ordered is None else ordered.double().trace())
        perms = {} if kind in MATRICES else {word: found.perm}
        return Step(perms, {} if found.map is None else {word: found.map}, found.value - float(before))

    def _heads(
        self, pair: Pair, fitted: FittedSpec, current: Permutations, known: Collection[str] | None
    ) -> Step:
        matrices = {word: _matrix(pair, word, current, known) for word in self.starred}
        outer = None
        if self.outer is not None and pair.single[self.outer]:
            outer = _matrix(pair, self.outer, current, known)
        every = [*matrices.values(), *([] if outer is None else [outer])]
        order, found, value = projection.heads(
            matrices, fitted.groups, fitted.within, outer, still=self.outer is None
        )
        before = sum(float(matrix.double().trace()) for matrix in every)
        perms = {} if self.outer is None else {self.outer: order}
        perms |= {word: each for word, each in found.items() if each.ndim == 1}
        return Step(perms, {word: each for word, each in found.items() if each.ndim > 1}, value - before)


def units_of(fitted: FittedSpec) -> list[Unit]:
    """All that has a group beyond permutations, and the heads that it lies in."""
    found = []
    coupled: set[str] = set()
    for group in starred.groups(fitted.within).values():
        if any(fitted.groups.get(word, PERMUTATION) != PERMUTATION for word in group.words):
            coupled.update(group.words)
            found.append(Unit(tuple(group.words), group.outer, tuple(group.starred)))
    return [*(Unit((word,)) for word in fitted.groups if word not in coupled), *found]


def _matrix(pair: Pair, word: str, current: Permutations, known: Collection[str] | None) -> torch.Tensor:
    return pair.matrix(word, current, chosen=_atoms(pair, word, known)).cpu()


def _matrices(
    pair: Pair, word: str, current: Permutations, known: Collection[str] | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The similarity of all that the word's maps act on, and of what it only orders."""
    atoms = _atoms(pair, word, known)
    ordered = [atom for atom in atoms if any(w == word and atom.ordered(d) for d, w in enumerate(atom.words))]
    whole = pair.matrix(word, current, chosen=[atom for atom in atoms if atom not in ordered]).cpu()
    return whole, pair.matrix(word, current, chosen=ordered).cpu() if ordered else None


def _atoms(pair: Pair, word: str, known: Collection[str] | None) -> Sequence[Atom]:
    return pair.single[word] + pair.double[word] if known is None else pair.resting_on(word, known)
