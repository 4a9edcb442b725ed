"""The variance of a sum of inner products over all orders of the units, without drawing any."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...spec.spec import Block
from .parts import Part


@dataclass(frozen=True)
class _Piece:
    """A part in one irreducible space of each axis: `labels` name these, `size` is their dimension."""

    labels: tuple[str, ...]
    x: Tensor
    y: Tensor
    size: int


def closed_variance(parts: Sequence[Part], within: Mapping[str, Block]) -> float | None:
    """The variance of the statistic over the whole group; None where a word acts on two axes of one tensor.

    Deviations from the mean are an irreducible space of the permutations of n units, of dimension n − 1;
    those of units within movable heads are two, of heads and within heads. By Schur's lemma the variance is
    Σ ‖X Yᵀ‖² / dimension, summed over spaces, with all axes that stay side by side: of one word Σ D²/(n−1)
    (Hoeffding 1951), of two Σ ⟨A_c, A_c'⟩⟨B_c, B_c'⟩/((n−1)(m−1)). Different sets of spaces are uncorrelated.
    """
    pieces: dict[tuple[str, ...], list[_Piece]] = defaultdict(list)
    for part in parts:
        bases = [_base(word, within) for word in part.words]
        if len({*bases}) < len(bases):
            return None
        for piece in _pieces(part, within):
            pieces[piece.labels].append(piece)
    total = 0.0
    for its in pieces.values():
        if its[0].size:
            x, y = (torch.cat([getattr(piece, which).flatten(1) for piece in its]).double() for which in "xy")
            if len(x) <= x.shape[1]:
                total += float(((x @ x.T) * (y @ y.T)).sum()) / its[0].size
            else:
                total += float((x.T @ y).square().sum()) / its[0].size
    return total


def _base(word: str, within: Mapping[str, Block]) -> str:
    block = within.get(word)
    return word if block is None or block.word is None else block.word


def _pieces(part: Part, within: Mapping[str, Block]) -> Iterator[_Piece]:
    """The part in all spaces of its axes, these sorted by name."""
    spaces = [_spaces(word, within) for word in part.words]
    for chosen in itertools.product(*spaces):
        x, y, size = part.x, part.y, 1
        for dim, (_, block, which) in enumerate(chosen, start=1):
            x, y = (_projected(v, dim, block, which) for v in (x, y))
            if block is None:
                size *= x.shape[dim] - 1
            else:
                size *= {"heads": block.count - 1, "within": block.count * (block.size - 1)}.get(
                    which, block.size - 1
                )
        labels = [label for label, *_ in chosen]
        order = sorted(range(len(labels)), key=labels.__getitem__)
        x, y = (v.permute(0, *(k + 1 for k in order)) for v in (x, y))
        yield _Piece(tuple(labels[k] for k in order), x, y, size)


def _spaces(word: str, within: Mapping[str, Block]) -> list[tuple[str, Block | None, str]]:
    """Name, blocks and kind of every space of an axis."""
    block = within.get(word)
    if block is None:
        return [(word, None, "")]
    if block.word is None:
        return [(f"{word} in {k}", block, str(k)) for k in range(block.count)]
    return [(block.word, block, "heads"), (f"{word} within", block, "within")]


def _projected(x: Tensor, dim: int, block: Block | None, which: str) -> Tensor:
    if block is None:
        return x
    split: Tensor = x.unflatten(dim, (block.count, block.size))
    mean = split.mean(dim + 1, keepdim=True)
    if which == "heads":
        return mean.squeeze(dim + 1) * math.sqrt(block.size)
    if which == "within":
        return (split - mean).flatten(dim, dim + 1)
    return (split - mean).select(dim, int(which))
