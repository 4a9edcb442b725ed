"""Every tensor as blocks whose axes are each permuted by one word, or not at all.

Flattened axes are unflattened and concatenations cut into segments, both as views without a copy, so
matching needs to know about neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .notation import Axis, Fixed, Product, Sum, Word
from .spec import FittedSpec


@dataclass(frozen=True)
class Atom:
    """A view of one tensor: `steps` make it, `words[d]` permutes its axis d (None: it stays)."""

    tensor: str
    words: tuple[str | None, ...]
    steps: tuple[tuple, ...] = ()

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        for step, *arguments in self.steps:
            tensor = getattr(tensor, step)(*arguments)
        return tensor


def atoms(fitted: FittedSpec, *, evidence_only: bool = True) -> Iterator[Atom]:
    """The atoms of every tensor, in the order of names; `evidence_only` leaves the statistics out."""
    for name in sorted(fitted.tensors):
        if not (evidence_only and name in fitted.statistics):
            yield from _split(name, fitted.tensors[name], (), fitted.words)


def _length(axis: Axis, words: dict[str, int]) -> int:
    if isinstance(axis, Word):
        return words[axis.name]
    if isinstance(axis, Fixed):
        return axis.size
    if isinstance(axis, Sum):
        return sum(_length(term, words) for term in axis.terms)
    size = 1
    for factor in axis.factors:
        size *= _length(factor, words)
    return size


def _split(name: str, axes: tuple[Axis, ...], steps: tuple, words: dict[str, int]) -> Iterator[Atom]:
    for d, axis in enumerate(axes):
        if isinstance(axis, Product):
            sizes = tuple(_length(factor, words) for factor in axis.factors)
            inner = (*axes[:d], *axis.factors, *axes[d + 1 :])
            yield from _split(name, inner, (*steps, ("unflatten", d, sizes)), words)
            return
        if isinstance(axis, Sum):
            start = 0
            for term in axis.terms:
                length = _length(term, words)
                inner = (*axes[:d], term, *axes[d + 1 :])
                yield from _split(name, inner, (*steps, ("narrow", d, start, length)), words)
                start += length
            return
    yield Atom(name, tuple(axis.name if isinstance(axis, Word) else None for axis in axes), steps)
