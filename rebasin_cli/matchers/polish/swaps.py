"""Which two units to swap: those by which the loss falls most, as far as its slope tells.

A permutation P of a word's units stands in the mean as λ·P θ. Were it soft, the loss's slope along its entry
(i, j) would be λ·⟨slice i of the gradient, slice j of θ⟩: one product of matrices for all pairs of units. To
swap i and j changes four entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
from torch import Tensor

from ...spec.notation import Word
from ...spec.spec import FittedSpec


def movable(fitted: FittedSpec, names: list[str]) -> dict[str, list[tuple[str, int]]]:
    """Words whose units are whole slices wherever they appear: tensors and axes of these, by word.

    Words within others, those that others lie within, and the orders of lists stay as the search found them.
    """
    nested = {*fitted.within, *(block.word for block in fitted.within.values())}
    nested |= {its.word for its in fitted.stacks.values()}
    places: dict[str, list[tuple[str, int]]] = {word: [] for word in fitted.words}
    for name in names:
        for dim, axis in enumerate(fitted.tensors.get(name, ())):
            if isinstance(axis, Word) and axis.name in places:
                places[axis.name].append((name, dim))
    return {w: its for w, its in places.items() if its and fitted.words[w] > 1 and w not in nested}


def slopes(
    places: list[tuple[str, int]], gradient: Mapping[str, Tensor], model: Mapping[str, Tensor]
) -> Tensor:
    """The slope of the loss along every entry of a word's permutation, (n, n), in float32."""
    products = []
    for name, dim in places:
        one, other = (t[name].movedim(dim, 0) for t in (gradient, model))
        products.append(one.reshape(len(one), -1) @ other.reshape(len(other), -1).T)
    return reduce(torch.add, products)


def best(slope: Tensor, count: int) -> list[tuple[int, int]]:
    """Up to `count` pairs of units, the steepest fall first; none that would let the loss rise."""
    here = slope.diagonal()
    change = slope + slope.T - here[:, None] - here
    size = len(change)
    rows, columns = torch.triu_indices(size, size, 1, device=change.device)
    falls = change[rows, columns]
    found = falls.topk(min(count, len(falls)), largest=False)
    return [
        (int(rows[k]), int(columns[k]))
        for fall, k in zip(*map(Tensor.tolist, found), strict=True)
        if fall < 0
    ]


def apart(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of the pairs, in their order, that share no unit with an earlier one."""
    taken: set[int] = set()
    found = []
    for pair in pairs:
        if not taken & {*pair}:
            taken |= {*pair}
            found.append(pair)
    return found


def order(size: int, pairs: list[tuple[int, int]]) -> Tensor:
    """The permutation of `size` units that swaps these pairs."""
    found = torch.arange(size)
    for i, j in pairs:
        found[i], found[j] = j, i
    return found
