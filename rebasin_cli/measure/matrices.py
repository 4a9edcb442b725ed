"""A matrix of A beside B's, as it is and matched: products in float64, of slabs that a cache holds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..averages.kinship import FLAT
from ..checkpoints.tensors import plan_of, rows
from ..spec.notation import Axis, words_of
from ..types import Tensors

Products = tuple[float, float, float]  # ⟨x, y⟩, ‖x‖², ‖y‖²
Sums = dict[tuple[int, ...], Tensor]  # over these axes, which are kept with length 1
SLAB = 1 << 16  # numbers compared at once
CANCELS = 1e-6  # of ‖x‖²: where a unit's own is less, means are taken off first, and products made anew
WIDE = 8 * 8  # bytes a number of a slab: of A and of both ways in float64, their differences, as they were


@dataclass(frozen=True)
class Compared:
    """A matrix of A beside B's in all ways: whole, and what is a unit's own of both.

    What is a unit's own is the tensor without its means over the axes that units lie on. `apart` is ‖x − y‖²
    of the whole. `flat`: one of A and B as it is has nothing of a unit's own. `equal`: A and B as they are,
    bit for bit.
    """

    whole: tuple[Products, ...]
    own: tuple[Products, ...]
    apart: tuple[float, ...]
    flat: bool
    equal: bool


def memory(shapes: Iterable[tuple[int, ...]]) -> int:
    """Bytes at most that comparing such tensors takes beside them."""
    return WIDE * max((max(SLAB, math.prod(shape[1:])) for shape in shapes), default=0)


def compare(name: str, a: Tensors, ways: Sequence[Tensors], axes: Sequence[Axis]) -> Compared:
    """One tensor of A and of every way that B is looked at; each is gone through once, about always."""
    models, shape = (a, *ways), plan_of(a)[name][1]
    units = [k for k, axis in enumerate(axes) if next(words_of(axis), None) is not None]
    sums: list[Sums] = [{} for _ in models]
    squares, inner, apart = [0.0] * len(models), [0.0] * len(ways), [0.0] * len(ways)
    equal = True
    for start, slabs in _slabs(models, name, shape):
        wide = [slab.double() for slab in slabs]
        equal = equal and torch.equal(wide[0], wide[1])
        for k, slab in enumerate(wide):
            squares[k] += _dot(slab, slab)
            _add(sums[k], slab, units, start, shape)
        for k, slab in enumerate(wide[1:]):
            inner[k] += _dot(wide[0], slab)
            difference = wide[0] - slab
            apart[k] += _dot(difference, difference)
    sums = [_all_sums(each, units) for each in sums]
    taken = [_of_means(each, each, shape) for each in sums]
    own = [square - less for square, less in zip(squares, taken, strict=True)]
    own_inner = [
        product - _of_means(sums[0], each, shape) for product, each in zip(inner, sums[1:], strict=True)
    ]
    if any(each <= CANCELS * square for each, square in zip(own, squares, strict=True)):
        own, own_inner = _anew(models, name, shape, sums)
    return Compared(
        tuple((product, squares[0], y) for product, y in zip(inner, squares[1:], strict=True)),
        tuple((product, own[0], y) for product, y in zip(own_inner, own[1:], strict=True)),
        tuple(apart),
        any(own[k] <= FLAT**2 * squares[k] for k in (0, 1)),
        equal,
    )


def _slabs(
    models: Sequence[Tensors], name: str, shape: tuple[int, ...]
) -> Iterator[tuple[int, list[Tensor]]]:
    """Where a slab of rows begins, and the slab in every model."""
    if not shape:
        yield 0, [model[name] for model in models]
        return
    step = max(1, SLAB // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield start, [rows(model, name, start, min(start + step, shape[0])) for model in models]


def _dot(x: Tensor, y: Tensor) -> float:
    return torch.dot(x.reshape(-1), y.reshape(-1)).item()


def _add(into: Sums, slab: Tensor, units: Iterable[int], start: int, shape: tuple[int, ...]) -> None:
    """The sums over each axis that units lie on, of all slabs together."""
    for k in units:
        if (k,) not in into:
            length = [1 if dim == k else size for dim, size in enumerate(shape)]
            into[(k,)] = slab.new_zeros(length)
        if k == 0:
            into[(0,)] += slab.sum(0, keepdim=True)
        else:
            torch.sum(slab, k, keepdim=True, out=into[(k,)][start : start + len(slab)])


def _all_sums(single: Sums, units: Sequence[int]) -> Sums:
    """Over every set of the axes that units lie on."""
    every = (axes for size in range(1, len(units) + 1) for axes in itertools.combinations(units, size))
    return {
        axes: single[axes[:1]].sum(axes[1:], keepdim=True) if axes[1:] else single[axes] for axes in every
    }


def _of_means(x: Mapping[tuple[int, ...], Tensor], y: Sums, shape: tuple[int, ...]) -> float:
    """What of ⟨x, y⟩ is not of a unit's own: taking off the mean is a projection, one for each axis."""
    return sum(_sign(axes) * _dot(x[axes], y[axes]) / math.prod(shape[k] for k in axes) for axes in x)


def _sign(axes: Sequence[int]) -> int:
    """Sets of axes count in turns, as those do that are in several sets."""
    return 1 if len(axes) % 2 else -1


def _anew(
    models: Sequence[Tensors], name: str, shape: tuple[int, ...], sums: Sequence[Sums]
) -> tuple[list[float], list[float]]:
    """Squares and products of what is a unit's own, made of what is left where means are taken off."""
    squares, inner = [0.0] * len(models), [0.0] * (len(models) - 1)
    for start, slabs in _slabs(models, name, shape):
        own = [_own(slab.double(), start, each, shape) for slab, each in zip(slabs, sums, strict=True)]
        for k, slab in enumerate(own):
            squares[k] += _dot(slab, slab)
        for k, slab in enumerate(own[1:]):
            inner[k] += _dot(own[0], slab)
    return squares, inner


def _own(slab: Tensor, start: int, sums: Sums, shape: tuple[int, ...]) -> Tensor:
    for axes, total in sums.items():
        part = total if 0 in axes or not shape else total[start : start + len(slab)]
        slab = torch.sub(slab, part, alpha=_sign(axes) / math.prod(shape[k] for k in axes))
    return slab
