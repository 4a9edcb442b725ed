"""Every tensor as blocks whose axes are each permuted by one word, or not at all.

Flattened axes are unflattened and concatenations cut into segments, so matching needs to know about
neither. A starred word permutes one axis of all its units: what it lies within is flattened together with
it, and where several lie within the same, the tensor is spread out over blocks with zeros between them,
(3 2*) 4* as a tensor of (3·2) × (3·4). Views without a copy but for that, and but for what a starred word
lies within that stands elsewhere than right before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .notation import Axis, Fixed, Product, Sum, Word, factors_of, fitted_length
from .spec import FittedSpec

Step = tuple[Any, ...]  # the name of a tensor's method, and its arguments


@dataclass(frozen=True, eq=False)
class Atom:
    """A view of one tensor: `steps` make it, `words[d]` permutes its axis d (None: it stays).

    Starred words permute as flat words do; the words they lie within have no axis of their own. Shapes can
    be had without values: from a tensor on the meta device. `sides` are those of the words (`Word.side`).
    An atom is equal to itself alone: a search looks atoms up thousands of times.
    """

    tensor: str
    words: tuple[str | None, ...]
    steps: tuple[Step, ...] = ()
    sides: tuple[str, ...] = ()

    def word(self, dim: int) -> str:
        """The word that permutes this axis; raises LookupError where the axis stays."""
        if (word := self.words[dim]) is None:
            raise LookupError(f"axis {dim} of {self.tensor} stays")
        return word

    def ordered(self, dim: int) -> bool:
        """Whether the word along this axis only orders it, whatever its group."""
        return bool(self.sides) and self.sides[dim] == "|"

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        for step, *arguments in self.steps:
            tensor = getattr(tensor, step)(*arguments)
        return tensor


def atoms(fitted: FittedSpec, *, evidence_only: bool = True) -> Iterator[Atom]:
    """The atoms of every tensor, in the order of names; `evidence_only` leaves the statistics out."""
    for name in sorted(fitted.tensors):
        if not (evidence_only and name in fitted.statistics):
            dims = [_Dim(axis, k) for k, axis in enumerate(fitted.tensors[name])]
            yield from _split(name, dims, (), fitted)


@dataclass(frozen=True, eq=False)
class _Dim:
    """One axis of a view: part of the tensor's axis `root`.

    `before` holds the words that stand before it in its products, and under None the first number.
    """

    axis: Axis
    root: int
    before: Mapping[str | None, _Dim] | None = None

    @property
    def word(self) -> str | None:
        return self.axis.name if isinstance(self.axis, Word) else None

    @property
    def side(self) -> str:
        return self.axis.side if isinstance(self.axis, Word) else ""


def _split(name: str, dims: list[_Dim], steps: tuple[Step, ...], fitted: FittedSpec) -> Iterator[Atom]:
    for d, dim in enumerate(dims):
        if isinstance(dim.axis, Product):
            factors = _factors(dim)
            sizes = tuple(fitted_length(factor.axis, fitted.sizes) for factor in factors)
            inner = [*dims[:d], *factors, *dims[d + 1 :]]
            yield from _split(name, inner, (*steps, ("unflatten", d, sizes)), fitted)
            return
        if isinstance(dim.axis, Sum):
            start = 0
            for term in dim.axis.terms:
                length = fitted_length(term, fitted.sizes)
                inner = [*dims[:d], _Dim(term, dim.root, dim.before), *dims[d + 1 :]]
                yield from _split(name, inner, (*steps, ("narrow", d, start, length)), fitted)
                start += length
            return
    yield _gathered(name, dims, steps, fitted)


def _factors(dim: _Dim) -> list[_Dim]:
    parts: list[_Dim] = []
    before = dict(dim.before or {})
    for factor in factors_of(dim.axis):
        part = _Dim(factor, dim.root, dict(before))
        if isinstance(factor, Word) and not factor.each:
            before[factor.name] = part
        elif isinstance(factor, Fixed):
            before.setdefault(None, part)
        parts.append(part)
    return parts


def _gathered(name: str, dims: list[_Dim], steps: tuple[Step, ...], fitted: FittedSpec) -> Atom:
    """The atom of axes that are words and numbers; starred words join what they lie within."""
    inside: dict[_Dim, list[_Dim]] = {}
    for dim in dims:
        if isinstance(dim.axis, Word) and dim.axis.each:
            inside.setdefault(_outer(dim, dim.axis, dims, fitted), []).append(dim)
    words = {dim: dim.word for dim in dims}
    dims = list(dims)
    more: list[Step] = []
    for outer, parts in inside.items():
        more.append(("movedim", dims.index(outer), -1))
        dims.remove(outer)
        more += [("diag_embed",)] * (len(parts) - 1)  # the last axis becomes two, zero but where they agree
        for part in parts:
            at = dims.index(part)
            more += [("movedim", -1, at), ("flatten", at, at + 1)]
    return Atom(name, tuple(words[dim] for dim in dims), (*steps, *more), tuple(dim.side for dim in dims))


def _outer(dim: _Dim, starred: Word, dims: list[_Dim], fitted: FittedSpec) -> _Dim:
    word = fitted.within[starred.name].word
    if (known := (dim.before or {}).get(word)) is not None:
        return known
    return next(
        other for other in dims if word is not None and other.axis == Word(word) and other.root != dim.root
    )


@dataclass(frozen=True)
class Dimension:
    """One axis of a block: the word that permutes it, if any; a starred one lies within the axis `outer`."""

    word: str | None
    starred: bool = False
    outer: int | None = None


Act = Callable[[torch.Tensor, tuple[Dimension, ...]], torch.Tensor]


def rebuilt(
    name: str,
    tensor: torch.Tensor,
    fitted: FittedSpec,
    act: Act,
) -> torch.Tensor:
    """The tensor taken apart into blocks, and put together of what `act` makes of each, of the same shape.

    Blocks are those of atoms, but for starred words, which keep apart from what they lie within.
    """
    dims = [_Dim(axis, k) for k, axis in enumerate(fitted.tensors[name])]
    return _through(tensor, dims, fitted, act)


def _through(tensor: torch.Tensor, dims: list[_Dim], fitted: FittedSpec, act: Act) -> torch.Tensor:
    for d, dim in enumerate(dims):
        if isinstance(dim.axis, Product):
            factors = _factors(dim)
            sizes = [fitted_length(factor.axis, fitted.sizes) for factor in factors]
            inner = [*dims[:d], *factors, *dims[d + 1 :]]
            return _through(tensor.unflatten(d, sizes), inner, fitted, act).flatten(d, d + len(sizes) - 1)
        if isinstance(dim.axis, Sum):
            lengths = [fitted_length(term, fitted.sizes) for term in dim.axis.terms]
            parts = [
                _through(part, [*dims[:d], _Dim(term, dim.root, dim.before), *dims[d + 1 :]], fitted, act)
                for part, term in zip(tensor.split(lengths, d), dim.axis.terms, strict=True)
            ]
            return torch.cat(parts, d)
    outers = [
        dims.index(_outer(dim, dim.axis, dims, fitted))
        if isinstance(dim.axis, Word) and dim.axis.each
        else None
        for dim in dims
    ]
    found = (Dimension(dim.word, at is not None, at) for dim, at in zip(dims, outers, strict=True))
    return act(tensor, tuple(found))
