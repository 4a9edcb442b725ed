"""How maps act along the axes of one tensor: on words, on segments, and on blocks of starred words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from ..errors import CheckpointError
from ..spec.notation import Axis, Fixed, Product, Sum, Word, factors_of, fitted_length, words_of
from ..spec.spec import FittedSpec

Maps = Mapping[str, tuple[torch.Tensor, torch.Tensor]]  # of each word its map, and the inverse transposed


def act(tensor: torch.Tensor, axes: tuple[Axis, ...], fitted: FittedSpec, maps: Maps) -> torch.Tensor:
    """One tensor with the maps along its axes, whose order is right already; itself where none acts."""
    dtype = tensor.dtype
    if not any(word in maps for axis in axes for word in words_of(axis)):
        return tensor
    return multiplied(tensor.double(), axes, fitted, maps).to(dtype)


def multiplied(tensor: torch.Tensor, axes: tuple[Axis, ...], fitted: FittedSpec, maps: Maps) -> torch.Tensor:
    """The same in the tensor's own type, which is also that of the maps; differentiable."""
    for dim, axis in enumerate(axes):
        tensor = _along(tensor, dim, axis, fitted, maps)
    return tensor


Before = tuple[tuple[Axis, int], ...]  # factors that stand before a place, and their dimensions


def _along(
    tensor: torch.Tensor, dim: int, axis: Axis, fitted: FittedSpec, maps: Maps, before: Before = ()
) -> torch.Tensor:
    if not any(word in maps for word in words_of(axis)):
        return tensor
    if isinstance(axis, Sum):
        lengths = [fitted_length(term, fitted.sizes) for term in axis.terms]
        segments = zip(tensor.split(lengths, dim), axis.terms, strict=True)
        return torch.cat([_along(part, dim, term, fitted, maps, before) for part, term in segments], dim)
    if isinstance(axis, Word):
        return _times(tensor, (*_outer(before, axis, fitted), dim), axis, maps)
    factors = factors_of(axis)
    parts: torch.Tensor = tensor.unflatten(dim, [fitted_length(factor, fitted.sizes) for factor in factors])
    for k, factor in enumerate(factors):
        inside = (*before, *((other, dim + j) for j, other in enumerate(factors[:k])))
        if isinstance(factor, Word | Product | Sum):
            parts = _along(parts, dim + k, factor, fitted, maps, inside)
    return parts.flatten(dim, dim + len(factors) - 1)


def _outer(before: Before, word: Word, fitted: FittedSpec) -> tuple[int, ...]:
    """The dimension of what a starred word lies within; of others none."""
    if not word.each:
        return ()
    outer = fitted.within[word.name].word
    for k, (factor, dim) in reversed(list(enumerate(before))):
        if factor == Word(outer or "") or (outer is None and k == 0 and isinstance(factor, Fixed)):
            return (dim,)
    raise _nowhere(word)


def _nowhere(word: Word) -> CheckpointError:
    return CheckpointError(
        f'"{word.name}*" has a map, and stands on an axis that does not say which block it is in',
        hint="Write what it lies within before it, as in (heads d*), or make it a permutation",
    )


def _times(tensor: torch.Tensor, dims: tuple[int, ...], word: Word, maps: Maps) -> torch.Tensor:
    """The units along the last of `dims` (their blocks lie along the first) times the word's map."""
    if word.side == "|":
        return tensor
    map_ = maps[word.name][word.side == "~"].to(tensor.device)
    front = tensor.movedim(dims, tuple(range(len(dims))))
    shape = front.shape
    if map_.ndim == 1:
        done = front.reshape(len(map_), -1) * map_[:, None]
    else:
        done = map_ @ front.reshape(*shape[: len(dims)], math.prod(shape[len(dims) :]))
    return done.reshape(shape).movedim(tuple(range(len(dims))), dims)


def views(
    tensor: torch.Tensor, axes: tuple[Axis, ...], fitted: FittedSpec, word: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every place of a word in a tensor: its side, and its units (n, k), of a starred word (H, D, k)."""

    def within(
        tensor: torch.Tensor, dim: int, axis: Axis, before: Before = ()
    ) -> Iterator[tuple[str, torch.Tensor]]:
        if isinstance(axis, Word) and axis.name == word:
            at = (*_outer(before, axis, fitted), dim)
            front = tensor.movedim(at, tuple(range(len(at))))
            yield axis.side, front.reshape(*front.shape[: len(at)], -1)
        elif isinstance(axis, Sum):
            lengths = [fitted_length(term, fitted.sizes) for term in axis.terms]
            for part, term in zip(tensor.split(lengths, dim), axis.terms, strict=True):
                yield from within(part, dim, term, before)
        elif isinstance(axis, Product) and word in words_of(axis):
            factors = factors_of(axis)
            parts = tensor.unflatten(dim, [fitted_length(factor, fitted.sizes) for factor in factors])
            for k, factor in enumerate(factors):
                inside = (*before, *((other, dim + j) for j, other in enumerate(factors[:k])))
                yield from within(parts, dim + k, factor, inside)

    for dim, axis in enumerate(axes):
        yield from within(tensor, dim, axis)
