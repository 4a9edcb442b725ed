"""Models under mixtures of group elements: what Frank-Wolfe needs to move all of them at once.

Every word of every model has a matrix from the convex hull of its group: a doubly stochastic one for orders,
the same with signs, one whose singular values are at most 1 for rotations; units within heads have one over
all of them. Σ over pairs of models and tensors of ⟨S_i θ_i, S_j θ_j⟩ is linear in each, so the corner that
its gradient is largest for is the element nearest to the gradient, found as in any search with groups. What
a signed word only orders goes by a mixture of its own.

Models are in canonical form, where scales and invertible matrices are balanced: what is left of every element
is orthogonal, so that `h~` goes by the matrix of `h`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import torch
from numpy.polynomial import Polynomial

from ...spec.atoms import Atom, atoms
from ...spec.groups import PERMUTATION
from ...spec.spec import FittedSpec
from ...symmetry import permutation, projection
from ...symmetry.elements import Elements
from ...types import Tensors
from . import starred
from .baked import constant
from .line import on_the_way

Matrices = dict[tuple[str, bool], torch.Tensor]  # a word's, and whether it is that of what it only orders


class Mixtures:
    """All models, each under a mixture of elements, in float64; at first each is as it was.

    `current` has for every model the matrices (n, n). Tensors are multiplied by the roots of `shares`.
    """

    def __init__(self, models: Sequence[Tensors], fitted: FittedSpec, shares: Mapping[str, float]):
        self.fitted = fitted
        seen = replace(fitted, statistics=fitted.statistics | constant(fitted))
        found = [atom for atom in atoms(seen) if any(atom.words) and atom.tensor in shares]
        self.atoms = [atom for atom in found if shares[atom.tensor] > 0]
        self.given = [
            {
                atom: atom.view(model[atom.tensor].double() * math.sqrt(shares[atom.tensor]))
                for atom in self.atoms
            }
            for model in models
        ]
        places = {self.place(atom, d) for atom in self.atoms for d in self.axes(atom)}
        sizes = {(word, only): fitted.words[word] for word in fitted.words for only in (False, True)}
        self.places = [place for place in sizes if place in places or not place[1]]
        self.current = [
            {place: torch.eye(sizes[place], dtype=torch.float64) for place in self.places} for _ in models
        ]
        self.solves = 0

    def place(self, atom: Atom, dim: int) -> tuple[str, bool]:
        word = atom.word(dim)
        return word, atom.ordered(dim) and self.fitted.groups.get(word, PERMUTATION) != PERMUTATION

    def axes(self, atom: Atom) -> list[int]:
        return [d for d, word in enumerate(atom.words) if word is not None]

    def under(self, tensor: torch.Tensor, atom: Atom, by: Matrices, dims: Sequence[int]) -> torch.Tensor:
        """The tensor times the matrices along these axes."""
        for d in dims:
            tensor = torch.tensordot(by[self.place(atom, d)], tensor, dims=([1], [d])).movedim(0, d)
        return tensor

    def mixed(self, k: int, atom: Atom) -> torch.Tensor:
        return self.under(self.given[k][atom], atom, self.current[k], self.axes(atom))

    def objective(self) -> float:
        total = 0.0
        for atom in self.atoms:
            mixed = [self.mixed(k, atom) for k in range(len(self.given))]
            own = sum(float(m.square().sum()) for m in mixed)
            total += float(reduce(torch.add, mixed).square().sum()) - own
        return total / 2

    def gradients(self) -> list[Matrices]:
        """Of the objective, by every model's mixtures."""
        found = [{place: torch.zeros_like(m) for place, m in by.items()} for by in self.current]
        for atom in self.atoms:
            mixed = [self.mixed(k, atom) for k in range(len(self.given))]
            whole = reduce(torch.add, mixed)
            for k, own in enumerate(mixed):
                others = whole - own
                for d in self.axes(atom):
                    rest = [other for other in self.axes(atom) if other != d]
                    mine = self.under(self.given[k][atom], atom, self.current[k], rest)
                    a, b = (t.movedim(d, 0).flatten(1) if t.ndim > 1 else t[:, None] for t in (others, mine))
                    found[k][self.place(atom, d)] += a @ b.T
        return found

    def nearest(self, matrices: Matrices) -> Elements:
        """The element with the largest inner product with these matrices."""
        fitted = self.fitted
        perms = permutation.identity(fitted.words)
        maps: dict[str, torch.Tensor] = {}
        coupled: set[str] = set()
        for group in starred.groups(fitted.within).values():
            coupled.update(group.words)
            outer = None if group.outer is None else matrices[group.outer, False]
            inner = {word: matrices[word, False] for word in group.starred}
            order, each, _ = projection.heads(inner, fitted.groups, fitted.within, outer, still=outer is None)
            if group.outer is not None:
                perms[group.outer] = order
            perms |= {word: one for word, one in each.items() if one.ndim == 1}
            maps |= {word: one for word, one in each.items() if one.ndim > 1}
        for word in fitted.words:
            if word not in coupled:
                kind = fitted.groups.get(word, PERMUTATION)
                found = projection.project(matrices[word, False], kind, order=matrices.get((word, True)))
                perms[word] = found.perm
                if found.map is not None:
                    maps[word] = found.map
        self.solves += len(fitted.words)
        return Elements(permutation.carried(perms, fitted.within), maps)

    def dense(self, element: Elements) -> Matrices:
        """An element as matrices."""
        found = {}
        for word, only in self.places:
            perm = element.permutations[word]
            matrix = torch.eye(len(perm), dtype=torch.float64)[perm]
            map_ = None if only else element.maps.get(word)
            if map_ is not None:
                wide = torch.block_diag(*map_) if map_.ndim == 3 else map_
                matrix = wide[:, None] * matrix if wide.ndim == 1 else wide @ matrix
            found[word, only] = matrix
        return found

    def line(self, corners: Sequence[Matrices]) -> Polynomial:
        """The objective over the share α of the corners."""
        return on_the_way(
            [self._terms(k, atom, self.axes(atom), to) for k, to in enumerate(corners)] for atom in self.atoms
        )

    def _terms(self, k: int, atom: Atom, axes: list[int], to: Matrices) -> list[torch.Tensor]:
        """By how many of the axes are at the corner already, the others mixed."""
        terms = [self.given[k][atom]]
        for d in axes:
            stay = [self.under(t, atom, self.current[k], [d]) for t in terms]
            go = [self.under(t, atom, to, [d]) for t in terms]
            terms = [stay[0], *(s + g for s, g in zip(stay[1:], go, strict=False)), go[-1]]
        return terms

    def step(self, corners: Sequence[Matrices], share: float) -> None:
        self.current = [
            {place: (1 - share) * matrix + share * to[place] for place, matrix in by.items()}
            for by, to in zip(self.current, corners, strict=True)
        ]
