"""Models under mixtures of group elements: what Frank-Wolfe needs to move all of them at once.

Every word of every model has a matrix from the convex hull of its group: a doubly stochastic one for orders,
the same with signs, one whose singular values are at most 1 for rotations; units within heads have one over
all of them. Σ over pairs of models and tensors of ⟨S_i θ_i, S_j θ_j⟩ is linear in each, so the corner that
its gradient is largest for is the element nearest to the gradient, found as in any search with groups. What
a signed word only orders goes by a mixture of its own.

A tensor under a mixture is kept with every subset of its axes mixed. A step towards an order, or one with
signs, gathers what each is under the corner and mixes it in: nothing is multiplied by a mixture anew.

Models are in canonical form, where scales and invertible matrices are balanced: what is left of every element
is orthogonal, so that `h~` goes by the matrix of `h`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from itertools import combinations

import torch
from numpy.polynomial import Polynomial

from ...runtime.threads import pool
from ...spec.atoms import Atom, atoms
from ...spec.spec import FittedSpec
from ...symmetry import assignment, permutation, projection
from ...symmetry.assignment import Solution
from ...symmetry.elements import Elements
from ...symmetry.form import constant
from ...types import Tensors
from . import starred, turned
from .assignments import THREADED
from .line import on_the_way
from .pace import Pace

Matrices = dict[tuple[str, bool], torch.Tensor]  # a word's, and whether it is that of what it only orders
Subsets = dict[tuple[int, ...], torch.Tensor]  # a tensor with these axes mixed


class Mixtures:
    """All models, each under a mixture of elements, in float64; at first each is as it was.

    `current` has for every model the matrices (n, n). Tensors are multiplied by the roots of `shares`. To be
    used while torch is held to one thread; `threads` are those that products and assignments may have.
    """

    def __init__(
        self,
        models: Sequence[Tensors],
        fitted: FittedSpec,
        shares: Mapping[str, float],
        *,
        device: str = "cpu",
        threads: int = 1,
    ):
        self.fitted, self.device, self.threads, self.pace = fitted, device, threads, Pace(threads)
        seen = replace(fitted, statistics=fitted.statistics | constant(fitted))
        found = [atom for atom in atoms(seen) if any(atom.words) and atom.tensor in shares]
        self.atoms = [atom for atom in found if shares[atom.tensor] > 0]
        self.given = [
            {
                atom: atom.view(model[atom.tensor].to(device).double() * math.sqrt(shares[atom.tensor]))
                for atom in self.atoms
            }
            for model in models
        ]
        places = {self.place(atom, d) for atom in self.atoms for d in self.axes(atom)}
        sizes = {(word, only): fitted.words[word] for word in fitted.words for only in (False, True)}
        self.places = [place for place in sizes if place in places or not place[1]]
        self.current: list[Matrices] = [
            {place: torch.eye(sizes[place], dtype=torch.float64).to(device) for place in self.places}
            for _ in models
        ]
        self._under: dict[tuple[int, Atom], Subsets] = {}
        self._starts: dict[tuple[int, str], Solution] = {}
        self.solves = 0

    def stand(self, current: Sequence[Matrices]) -> None:
        """Let the models be under these mixtures."""
        self.current = [{place: m.to(self.device) for place, m in by.items()} for by in current]
        self._under = {}

    def place(self, atom: Atom, dim: int) -> tuple[str, bool]:
        word = atom.word(dim)
        return word, atom.ordered(dim) and word in self.fitted.groups

    def axes(self, atom: Atom) -> tuple[int, ...]:
        return tuple(d for d, word in enumerate(atom.words) if word is not None)

    def under(self, k: int, atom: Atom, dims: tuple[int, ...]) -> torch.Tensor:
        """The `k`-th model's tensor times its mixtures along these axes; kept while they stand."""
        if not dims:
            return self.given[k][atom]
        kept = self._under.setdefault((k, atom), {})
        if dims not in kept:
            *others, d = dims
            kept[dims] = _times(self.current[k][self.place(atom, d)], self.under(k, atom, tuple(others)), d)
        return kept[dims]

    def mixed(self, k: int, atom: Atom) -> torch.Tensor:
        return self.under(k, atom, self.axes(atom))

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
                    mine = self.under(k, atom, tuple(other for other in self.axes(atom) if other != d))
                    a, b = (t.movedim(d, 0).flatten(1) if t.ndim > 1 else t[:, None] for t in (others, mine))
                    self.pace.add_product(found[k][self.place(atom, d)], a, b)
        return found

    def corners(self) -> list[Elements]:
        """For every model the element that the gradient at the mixtures is largest for."""
        coupled = starred.groups(self.fitted.within)
        alone = {*self.fitted.words} - {word for group in coupled.values() for word in group.words}
        self.solves += len(self.given) * (len(alone) + len(coupled))
        return [self.nearest(gradient, k) for k, gradient in enumerate(self.gradients())]

    def nearest(self, matrices: Matrices, k: int | None = None) -> Elements:
        """The element with the largest inner product with these matrices.

        Assignments for the `k`-th model start from where its last ones ended.
        """
        fitted = self.fitted
        perms = permutation.identity(fitted.words)
        maps: dict[str, torch.Tensor] = {}
        coupled: set[str] = set()
        for group in starred.groups(fitted.within).values():
            coupled.update(group.words)
            outer = None if group.outer is None else matrices[group.outer, False]
            inner = {word: matrices[word, False] for word in group.starred}
            found = turned.nearest(group, inner, fitted, outer)
            perms, maps = perms | found.perms, maps | found.maps
        alone = [word for word in fitted.words if word not in coupled]
        perms |= self._ordered({w: matrices[w, False] for w in alone if w not in fitted.groups}, k)
        for word in (word for word in alone if word in fitted.groups):
            kind, order = fitted.groups[word], matrices.get((word, True))
            one = projection.project(matrices[word, False], kind, order=order)
            perms[word] = one.perm
            maps |= {} if one.map is None else {word: one.map}
        return Elements(permutation.carried(perms, fitted.within), maps)

    def _ordered(self, matrices: Mapping[str, torch.Tensor], k: int | None) -> dict[str, torch.Tensor]:
        """The best order of each of these words."""
        starts = [None if k is None else self._starts.get((k, word)) for word in matrices]
        long = self.threads > 1 and max(map(len, matrices.values()), default=0) >= THREADED
        with pool(self.threads) if long else nullcontext() as others:
            solved = assignment.solve_all(matrices.values(), starts, pool=others)
        if k is not None:
            self._starts |= {(k, word): found for word, found in zip(matrices, solved, strict=True)}
        return {word: found.perm for word, found in zip(matrices, solved, strict=True)}

    def towards(
        self, matrix: torch.Tensor, place: tuple[str, bool], to: Elements, share: float
    ) -> torch.Tensor:
        """A word's mixture with this share of an element."""
        word, only = place
        mixed = (1 - share) * matrix
        if only or word not in to.maps:  # an order adds one number a row
            order = to.permutations[word].to(mixed.device)
            mixed[torch.arange(len(order), device=mixed.device), order] += share
            return mixed
        still = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        return mixed + share * self._acted(still, 0, place, to)

    def _acted(self, tensor: torch.Tensor, d: int, place: tuple[str, bool], by: Elements) -> torch.Tensor:
        """The tensor with an element acting along one axis."""
        word, only = place
        tensor = tensor.index_select(d, by.permutations[word].to(tensor.device))
        map_ = None if only else by.maps.get(word)
        if map_ is None:
            return tensor
        map_ = (torch.block_diag(*map_) if map_.ndim == 3 else map_).to(tensor.device)
        return _times(map_, tensor, d) if map_.ndim == 2 else (tensor.movedim(d, -1) * map_).movedim(-1, d)

    def line(self, corners: Sequence[Elements]) -> Polynomial:
        """The objective over the share α of the corners."""
        return on_the_way(
            [self._terms(k, atom, self.axes(atom), to) for k, to in enumerate(corners)] for atom in self.atoms
        )

    def _terms(self, k: int, atom: Atom, axes: tuple[int, ...], to: Elements) -> list[torch.Tensor]:
        """By how many of these axes are at the corner already, the others mixed."""
        return [
            reduce(torch.add, (self._moved(k, atom, axes, dims, to) for dims in combinations(axes, e)))
            for e in range(len(axes) + 1)
        ]

    def _moved(
        self, k: int, atom: Atom, axes: tuple[int, ...], dims: tuple[int, ...], to: Elements
    ) -> torch.Tensor:
        """Of these axes `dims` are at the corner."""
        tensor = self.under(k, atom, tuple(d for d in axes if d not in dims))
        for d in dims:
            tensor = self._acted(tensor, d, self.place(atom, d), to)
        return tensor

    def step(self, corners: Sequence[Elements], share: float) -> None:
        """Mix these elements in, with this share."""
        for k, to in enumerate(corners):
            for atom in self.atoms:
                axes = [d for d in self.axes(atom) if self._gathers(self.place(atom, d), to)]
                subsets = (dims for e in range(len(axes)) for dims in combinations(axes, e + 1))
                self._under[k, atom] = {d: self._mixed_in(k, atom, d, to, share) for d in subsets}
        self.current = [
            {place: self.towards(matrix, place, to, share) for place, matrix in by.items()}
            for by, to in zip(self.current, corners, strict=True)
        ]

    def _mixed_in(
        self, k: int, atom: Atom, axes: tuple[int, ...], to: Elements, share: float
    ) -> torch.Tensor:
        """The tensor under the next mixtures of these axes."""
        if share == 1:
            return self._moved(k, atom, axes, axes, to)
        last = len(axes)
        terms = enumerate(self._terms(k, atom, axes, to))
        return reduce(torch.add, ((1 - share) ** (last - e) * share**e * term for e, term in terms))

    def _gathers(self, place: tuple[str, bool], to: Elements) -> bool:
        """Whether an element acts on an axis without a product of matrices."""
        word, only = place
        return only or word not in to.maps or to.maps[word].ndim == 1


def _times(matrix: torch.Tensor, tensor: torch.Tensor, d: int) -> torch.Tensor:
    product: torch.Tensor = torch.tensordot(matrix, tensor, dims=([1], [d])).movedim(0, d)
    return product
