"""Index maps: the old positions, in the new order, of all entries along an axis; blocks of starred words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ..errors import SpecError
from ..spec.notation import Axis, Fixed, Sum, Word, factors_of, fitted_length, starred_of
from ..spec.spec import Block

Within = Mapping[str, Block]  # what starred words lie within: `FittedSpec.within`
PLAIN: Within = {}


def split(perm: torch.Tensor, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """A starred word's permutation as the order of its blocks (H,), and the order within each (H, D)."""
    units = perm.reshape(block.count, block.size)
    return units[:, 0] // block.size, units % block.size


def join(outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """The permutation (H·D,) that `split` takes apart; row k of `inner` orders the block that is now at k."""
    return (outer[:, None] * inner.shape[1] + inner).flatten()


def axis_index(axis: Axis, permutations: Mapping[str, torch.Tensor], within: Within = PLAIN) -> torch.Tensor:
    """Old positions, in the new order, of all entries along one axis that depends on no other axis."""
    return _old(axis, permutations, within, {}).flatten()


def _old(
    axis: Axis,
    permutations: Mapping[str, torch.Tensor],
    within: Within,
    outer: Mapping[str | None, torch.Tensor],
) -> torch.Tensor:
    """Old positions (m, n) along an axis at m places of what it lies within; (1, n) where all are alike.

    `outer` maps the words that are known there to their new positions (m,), None to those of the first
    number.
    """
    if isinstance(axis, Word) and axis.each:
        block = within[axis.name]
        return split(permutations[axis.name], block)[1][outer[block.word]]
    if isinstance(axis, Word):
        return permutations[axis.name][None]
    if isinstance(axis, Fixed):
        return torch.arange(fitted_length(axis, {}))[None]
    if isinstance(axis, Sum):
        parts, offset = [], 0
        for term in axis.terms:
            part = _old(term, permutations, within, outer)
            parts.append(part + offset)
            offset += part.shape[1]
        places = max(len(part) for part in parts)
        return torch.cat([part.expand(places, -1) for part in parts], dim=1)
    places = next((len(at) for at in outer.values()), 1)
    index = torch.zeros(places, dtype=torch.int64)
    known = dict(outer)
    for factor in factors_of(axis):
        inner = _old(factor, permutations, within, known)
        count = inner.shape[1]
        known = {word: at.repeat_interleave(count) for word, at in known.items()}
        if isinstance(factor, Word) and not factor.each:
            known[factor.name] = torch.arange(count).repeat(len(index))
        elif isinstance(factor, Fixed):
            known.setdefault(None, torch.arange(count).repeat(len(index)))
        index = (index[:, None] * count + inner).flatten()
    return index.view(places, -1)


def elsewhere(axis: Axis, within: Within) -> list[str]:
    """The words on other axes of a tensor that the order of this one depends on."""
    found = starred_of(axis) if within else ()
    return sorted({outer for word, said in found if (outer := within[word].word) and said != Word(outer)})


def indices_of(
    shape: Sequence[int],
    axes: tuple[Axis, ...],
    permutations: Mapping[str, torch.Tensor],
    within: Within,
    rows: slice = slice(None),
) -> list[torch.Tensor]:
    """What indexes a tensor whose axes depend on where one is on another one: `i*` in "(g o*) i*".

    One for each axis but the last that stay; together they broadcast. `rows` are those of the first axis.
    """
    sizes = {word: within[word].size if word in within else len(perm) for word, perm in permutations.items()}
    last = max(k for k, axis in enumerate(axes) if not isinstance(axis, Fixed))
    axes, indices = axes[: last + 1], []  # behind it whole pieces are copied
    for k, axis in enumerate(axes):
        others = {word: _beside(axes, k, word) for word in elsewhere(axis, within)}
        dims = sorted(set(others.values()))
        places = [shape[j] for j in dims]
        at: dict[str | None, torch.Tensor] = {
            word: _positions(axes[j], word, sizes)
            .view([-1 if j == dim else 1 for dim in dims])
            .expand(places)
            .flatten()
            for word, j in others.items()
        }
        index = _old(axis, permutations, within, at).view(*places, -1)
        index = index.movedim(-1, sum(dim < k for dim in dims))
        index = index.reshape([n if j in (k, *dims) else 1 for j, n in enumerate(shape[: len(axes)])])
        indices.append(index[rows] if 0 in (k, *dims) else index)
    return indices


def _beside(axes: tuple[Axis, ...], k: int, word: str) -> int:
    """The other axis that has a word; raises SpecError where none has."""
    for j, other in enumerate(axes):
        if j != k and Word(word) in factors_of(other):
            return j
    raise SpecError(
        f'"{axes[k]}" lies within "{word}", which no other axis of the tensor has',
        problems=[f'its axes are "{" ".join(map(str, axes))}"'],
    )


def _positions(axis: Axis, word: str, sizes: Mapping[str, int]) -> torch.Tensor:
    """At which unit of one of its factors each entry of an axis is."""
    factors = factors_of(axis)
    before = factors[: factors.index(Word(word))]
    after = factors[len(before) + 1 :]
    count = math.prod(fitted_length(factor, sizes) for factor in after)
    times = math.prod(fitted_length(factor, sizes) for factor in before)
    return torch.arange(sizes[word]).repeat_interleave(count).repeat(times)
