"""One doubly stochastic matrix a word: what they are for permutations, what they round to, what they do.

A word of n units has a matrix (n, n). A starred word, D units in each of H blocks, has one (H, H, D, D): for
every two blocks how the units of the one stand for those of the other; which blocks do is said by the word
that it lies within. All blocks and both words together act as O_kl · I_kl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...spec.atoms import Dimension, rebuilt
from ...spec.spec import FittedSpec
from ...symmetry import index_maps
from ...types import Permutations
from .birkhoff import Mixture, mixture_of, nearest

Matrices = Mapping[str, Tensor]


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
