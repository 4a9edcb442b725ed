"""A matrix of A beside B's, as it is and matched: products in float64, of slabs that a cache holds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..averages.kinship import FLAT, same
from ..checkpoints.tensors import plan_of, rows
from ..spec.notation import Axis, words_of
from ..types import Tensors

Products = tuple[float, float, float]  # ⟨x, y⟩, ‖x‖², ‖y‖²
Sums = dict[tuple[int, ...], Tensor]  # over these axes, which are kept with length 1
SLAB = 1 << 16  # numbers compared at once
LOOKED = 1 << 22  # numbers of a tensor by which it is told how two compare: a cosine to about 5e-4
CANCELS = 1e-6  # of ‖x‖²: where a unit's own is less, means are taken off first, and products made anew
WIDE = 8 * 8  # bytes a number of a slab: of A and of both ways in float64, their differences, as they were


@dataclass(frozen=True)
class Compared:
    """A matrix of A beside B's in all ways: whole, and what is a unit's own of both.

    What is a unit's own is the tensor without its means over the axes that units lie on. `apart` is ‖x − y‖²
    of the whole. `flat`: one of A and B as it is has nothing of a unit's own. `equal`: A and B as they are,
    bit for bit. All but that is of the `share` of the rows that was looked at, for the whole tensor.
    """

    whole: tuple[Products, ...]
    own: tuple[Products, ...]
    apart: tuple[float, ...]
    flat: bool
    equal: bool
    share: float


def memory(shapes: Iterable[tuple[int, ...]]) -> int:
    """Bytes at most that comparing such tensors takes beside them."""
    return WIDE * max((max(SLAB, math.prod(shape[1:])) for shape in shapes), default=0)


def compare(
    name: str, a: Tensors, ways: Sequence[Tensors], axes: Sequence[Axis], *, looked: int | None = None
) -> Compared:
    """One tensor of A and of every way that B is looked at; each is gone through once, about always.

    Of more than `looked` numbers slabs from all over the tensor stand for the whole.
    """
    models, whole = (a, *ways), plan_of(a)[name][1]
    slabs = _slabs(whole, looked)
    shape = (sum(stop - start for start, stop in slabs), *whole[1:]) if whole else whole
    units = [k for k, axis in enumerate(axes) if next(words_of(axis), None) is not None]
    sums: list[Sums] = [{} for _ in models]
    squares, inner, apart = [0.0] * len(models), [0.0] * len(ways), [0.0] * len(ways)
    equal = True
    for start, here in _made(models, name, slabs):
        wide = [slab.double() for slab in here]
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
        own, own_inner = _anew(_made(models, name, slabs), shape, sums)
    share = shape[0] / whole[0] if whole and whole[0] else 1.0
    return Compared(
        tuple(
            (product / share, squares[0] / share, y / share)
            for product, y in zip(inner, squares[1:], strict=True)
        ),
        tuple(
            (product / share, own[0] / share, y / share)
            for product, y in zip(own_inner, own[1:], strict=True)
        ),
        tuple(each / share for each in apart),
        any(own[k] <= FLAT**2 * squares[k] for k in (0, 1)),
        equal and (share == 1 or same(a, ways[0], name)),
        share,
    )


def _slabs(shape: tuple[int, ...], looked: int | None) -> list[tuple[int, int]]:
    """Where slabs of rows begin and end: all of a tensor, or `looked` numbers, evenly spread."""
    if not shape:
        return [(0, 1)]
    width = max(1, math.prod(shape[1:]))
    step = max(1, SLAB // width)
    slabs = [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]
    count = len(slabs) if looked is None else max(2, looked // (step * width))
    return (
        slabs if count >= len(slabs) else [slabs[k * (len(slabs) - 1) // (count - 1)] for k in range(count)]
    )


def _made(
    models: Sequence[Tensors], name: str, slabs: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, list[Tensor]]]:
    """The slabs of every model, and where each begins among them all."""
    at = 0
    for start, stop in slabs:
        scalar = not plan_of(models[0])[name][1]
        yield at, [model[name] if scalar else rows(model, name, start, stop) for model in models]
        at += stop - start


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
    made: Iterable[tuple[int, list[Tensor]]], shape: tuple[int, ...], sums: Sequence[Sums]
) -> tuple[list[float], list[float]]:
    """Squares and products of what is a unit's own, made of what is left where means are taken off."""
    squares, inner = [0.0] * len(sums), [0.0] * (len(sums) - 1)
    for start, slabs in made:
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
