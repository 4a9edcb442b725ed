"""One doubly stochastic matrix a word: what they are for permutations, what they do, and what they round to.

A word of n units has a matrix (n, n). A starred word, D units in each of H blocks, has one (H, H, D, D): for
every two blocks how the units of the one stand for those of the other; which blocks do is said by the word
that it lies within. All blocks and both words together act as O_kl · I_kl. The convention is that of
permutations: entry (i, j) says how far the unit that is now at i is the old j.

Projections (appendix E.2) are of matrices (…, n, n), each by itself: no entry negative, all rows and columns
add up to 1. By Birkhoff's theorem such a matrix is a mixture of permutations, which are drawn from it
(appendix E.4, equations 52 to 55). Tatro et al. 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...spec.atoms import Dimension, rebuilt
from ...spec.spec import FittedSpec
from ...symmetry import assignment, index_maps
from ...types import Permutations

Matrices = Mapping[str, Tensor]
ROUNDING = 1e-14  # what is left of an entry that was taken whole
PROJECTIONS = ("alternating", "dykstra", "sinkhorn")
TINY = 5e-4  # entries below are rounding and haste, and no part of a permutation: the published program's


def of_permutations(permutations: Permutations, fitted: FittedSpec) -> dict[str, Tensor]:
    """The matrices that do what these do; between blocks that do not meet, all units stand for all alike."""
    found = {}
    for word, perm in permutations.items():
        if (block := fitted.within.get(word)) is None:
            found[word] = torch.eye(len(perm))[perm]
            continue
        order, inner = index_maps.split(perm, block)
        shape = (block.count, block.count, block.size, block.size)
        matrix = torch.full(shape, 1 / block.size)
        matrix[torch.arange(block.count), order] = torch.eye(block.size)[inner]
        found[word] = matrix
    return found


def moved(name: str, tensor: Tensor, matrices: Matrices, fitted: FittedSpec) -> Tensor:
    """The tensor with every axis of units multiplied by the matrix of its word; differentiable."""

    def act(block: Tensor, dims: tuple[Dimension, ...]) -> Tensor:
        outers = {dim.outer for dim in dims if dim.starred and dim.outer is not None}
        for d, dim in enumerate(dims):
            if dim.word is not None and not dim.starred and d not in outers:
                block = _along(block, d, matrices[dim.word])
        for outer in outers:
            inner = {
                d: matrices[dim.word]
                for d, dim in enumerate(dims)
                if dim.starred and dim.outer == outer and dim.word is not None
            }
            block = _within(block, outer, dims[outer].word, inner, matrices)
        return block

    return rebuilt(name, tensor, fitted, act)


def _along(block: Tensor, d: int, matrix: Tensor) -> Tensor:
    made: Tensor = torch.tensordot(matrix, block, dims=([1], [d])).movedim(0, d)
    return made


def _within(
    block: Tensor, outer: int, word: str | None, inner: Mapping[int, Tensor], matrices: Matrices
) -> Tensor:
    """Σ_l O_kl · I_kl x_l along the axis `outer` and those within it."""
    count = block.shape[outer]
    order = torch.eye(count, dtype=block.dtype, device=block.device) if word is None else matrices[word]
    parts = block.movedim(outer, 0).expand(count, *block.movedim(outer, 0).shape)  # (k, l, …)
    for d, matrix in inner.items():
        at = d + 2 - (d > outer)
        last = parts.movedim(at, -1)
        flat = last.reshape(count, count, -1, last.shape[-1]) @ matrix.transpose(-1, -2)
        parts = flat.view(last.shape).movedim(-1, at)
    return torch.einsum("kl,kl...->k...", order, parts).movedim(0, outer)


class Rounding:
    """Permutations near to doubly stochastic matrices: the nearest, and draws of every word by itself."""

    def __init__(self, matrices: Matrices, fitted: FittedSpec, terms: int):
        self.matrices, self.fitted, self.terms = matrices, fitted, terms
        self.plain = [word for word in fitted.words if word not in fitted.within]
        self._mixtures: dict[tuple[Any, ...], Mixture] = {}

    @property
    def solves(self) -> int:
        """Assignments that were solved."""
        return len(self.plain) + sum(len(one.shares) for one in self._mixtures.values())

    def nearest(self) -> dict[str, Tensor]:
        """The nearest permutation of every word."""
        found = {word: nearest(self.matrices[word]) for word in self.plain}
        return found | self._inner(found, lambda word, *at: nearest(self.matrices[word][at]))

    def draw(self, rng: torch.Generator) -> dict[str, Tensor]:
        """One permutation of every word, drawn from its mixture."""
        found = {word: self._mixture(word).draw(rng) for word in self.plain}
        return found | self._inner(found, lambda word, *at: self._mixture(word, *at).draw(rng))

    def _inner(self, found: Permutations, order_of: Callable[..., Tensor]) -> dict[str, Tensor]:
        inner = {}
        for word, block in self.fitted.within.items():
            order = torch.arange(block.count) if block.word is None else found[block.word]
            orders = [order_of(word, k, other) for k, other in enumerate(order.tolist())]
            inner[word] = index_maps.join(order, torch.stack(orders))
        return inner

    def _mixture(self, word: str, *at: int) -> Mixture:
        if (word, *at) not in self._mixtures:
            self._mixtures[word, *at] = mixture_of(self.matrices[word][at], self.terms)
        return self._mixtures[word, *at]


@dataclass(frozen=True)
class Mixture:
    """Permutations (terms, n) and their shares (terms,), float64: the largest come nowhere in particular."""

    permutations: Tensor
    shares: Tensor

    def draw(self, rng: torch.Generator) -> Tensor:
        """One permutation, as often as its share says."""
        return self.permutations[int(torch.multinomial(self.shares, 1, generator=rng).item())]

    def matrix(self) -> Tensor:
        """Σ α_i P_i, float64."""
        eye = torch.eye(self.permutations.shape[1], dtype=torch.float64)
        return torch.einsum("k,kij->ij", self.shares, eye[self.permutations])


def mixture_of(matrix: Tensor, terms: int | None = None) -> Mixture:
    """Greedily: the best assignment on what is left, as much of it as its smallest entry allows, and again.

    At most `terms` of them (None: until nothing is left), their shares made to add up to 1. A matrix whose
    entries do not quite add up ends where no permutation fits into what is left; one in which none fits at
    all is its nearest permutation.
    """
    left = matrix.detach().to("cpu", torch.float64).clone()
    size = len(left)
    rows = torch.arange(size)
    found: list[Tensor] = []
    shares: list[Tensor] = []
    while terms is None or len(found) < terms:
        there = left > 0
        outside = -(size + 1.0)  # no sum makes up for one of these
        perm = assignment.solve(torch.where(there, left, outside)).perm
        if not there[rows, perm].all():
            break
        share = left[rows, perm].min()
        left[rows, perm] -= share
        left[left < ROUNDING] = 0
        found.append(perm)
        shares.append(share)
    if not found:
        return Mixture(nearest(matrix)[None], torch.ones(1, dtype=torch.float64))
    weights = torch.stack(shares)
    return Mixture(torch.stack(found), weights / weights.sum())


def nearest(matrix: Tensor) -> Tensor:
    """The permutation whose matrix is nearest: the best assignment."""
    return assignment.solve(matrix.detach().to("cpu", torch.float64)).perm


def to_sums(matrices: Tensor) -> Tensor:
    """The nearest matrices, by the Frobenius norm, whose rows and columns all add up to 1.

    X + (1/n + s/n²) 11ᵀ − (1/n) X11ᵀ − (1/n) 11ᵀX, where s is the sum of all entries.
    """
    size = matrices.shape[-1]
    rows = matrices.sum(-1, keepdim=True)
    columns = matrices.sum(-2, keepdim=True)
    total = rows.sum(-2, keepdim=True)
    return matrices + ((1 + total / size) - rows - columns) / size


def alternating(matrices: Tensor, rounds: int) -> Tensor:
    """To no negative entry and to the sums in turn, as published: not to the nearest such matrix.

    The sums come last, so some entries are still a little negative.
    """
    for _ in range(rounds):
        matrices = to_sums(matrices.clamp(min=0))
    return matrices


def dykstra(matrices: Tensor, rounds: int) -> Tensor:
    """As `alternating`, what is clamped away given back before the next round: the nearest, in the limit.

    Boyle and Dykstra 1986; the sums are an affine set and need no correction.
    """
    correction = torch.zeros_like(matrices)
    for _ in range(rounds):
        lifted = matrices + correction
        clamped = lifted.clamp(min=0)
        correction = lifted - clamped
        matrices = to_sums(clamped)
    return matrices


def sinkhorn(matrices: Tensor, rounds: int) -> Tensor:
    """Rows and columns of the positive part divided by their sums in turn: nearest by relative entropy."""
    matrices = matrices.clamp(min=torch.finfo(matrices.dtype).tiny)
    for _ in range(rounds):
        matrices = matrices / matrices.sum(-1, keepdim=True)
        matrices = matrices / matrices.sum(-2, keepdim=True)
    return matrices


def projected(matrices: Tensor, how: str, rounds: int) -> Tensor:
    """By one of `PROJECTIONS`, in so many rounds."""
    return {"alternating": alternating, "dykstra": dykstra, "sinkhorn": sinkhorn}[how](matrices, rounds)


def cleaned(matrices: Tensor) -> Tensor:
    """Without the entries that are next to nothing or negative."""
    return torch.where(matrices < TINY, torch.zeros_like(matrices), matrices)
