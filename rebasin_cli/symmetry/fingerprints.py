"""An exact relabelling found without a search: every unit is known by the bits of its values.

A unit's fingerprint is a sum of numbers mixed from the bits of its values, in all tensors: the order of all
other units does not change it. Units of two models with equal fingerprints are paired; whether that is right
is for who asks to see, by comparing values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from ..checkpoints.tensors import blocks, plan_of
from ..runtime.ranks import ALONE, Ranks
from ..spec.notation import Axis, Word, factors_of, fitted_length
from ..spec.spec import FittedSpec
from ..types import Permutations, Tensors

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FIRST, _SECOND = -7046029254386353131, -4417276706812531889  # odd, with bits all over


def relabelling(a: Tensors, b: Tensors, fitted: FittedSpec, ranks: Ranks = ALONE) -> Permutations | None:
    """The order of B's units that may turn it into A; None where fingerprints find none.

    Both are read once, by each of several `ranks` tensors of its own. They do not tell of starred words, of
    lists, and of words that are on no axis by themselves; that there is none they tell of values that differ
    in a bit, or in dtype.
    """
    plan = plan_of(a)
    known = all(dtype.itemsize in _INTEGERS for dtype, _ in plan.values())
    if fitted.within or fitted.stacks or not known or plan != plan_of(b):
        return None
    ours, theirs = _fingerprints([a, b], fitted, ranks)
    found = {}
    for word, size in fitted.words.items():
        one, other = ours.get(word), theirs.get(word)
        if one is None or other is None:
            return None
        (first, to), (second, source) = one.sort(stable=True), other.sort(stable=True)
        if not torch.equal(first, second):
            return None
        found[word] = torch.empty(size, dtype=torch.int64).index_copy_(0, to, source)
    return found


def _fingerprints(
    models: Sequence[Tensors], fitted: FittedSpec, ranks: Ranks
) -> tuple[dict[str, Tensor], ...]:
    """{word: one number a unit} of every model: sums of what each rank has of its tensors, in any order."""
    mine = ranks.share([*fitted.tensors], [math.prod(fitted.shapes[name]) for name in fitted.tensors])
    own = ranks.each(lambda: [_own_fingerprints(model, fitted, mine) for model in models])
    whole: tuple[dict[str, Tensor], ...] = tuple({} for _ in models)
    for parts in ranks.all(own):
        for into, part in zip(whole, parts, strict=True):
            for word, sums in part.items():
                into[word] = into[word] + sums if word in into else sums
    return whole


def _own_fingerprints(model: Tensors, fitted: FittedSpec, names: Collection[str]) -> dict[str, Tensor]:
    """The same of some tensors alone."""
    found: dict[str, Tensor] = {}
    for number, (name, axes) in enumerate(sorted(fitted.tensors.items())):
        telling = {
            dim: axis
            for dim, axis in enumerate(axes)
            if any(isinstance(factor, Word) for factor in factors_of(axis))
        }
        if name not in names or not telling or 0 in fitted.shapes[name]:
            continue
        for dim, sums in _sums(model, name, fitted.shapes[name], telling).items():
            _add(found, telling[dim], sums, fitted, 2 * number + 1)
    return found


def _sums(model: Tensors, name: str, shape: tuple[int, ...], dims: Collection[int]) -> dict[int, Tensor]:
    """Of each axis, what is at each position on it: the sum of what all values' bits are mixed to."""
    made = {dim: torch.zeros(shape[dim], dtype=torch.int64) for dim in dims}
    start = 0
    for bits in _bits(model, name):
        bits = _mixed(bits)
        for dim, into in made.items():
            others = [k for k in range(len(shape)) if k != dim]
            sums = bits.sum(others) if others else bits
            if dim == 0:
                into[start : start + len(bits)] = sums
            else:
                into += sums
        start += len(bits)
    return made


def of_values(model: Tensors, name: str) -> int | None:
    """A number that tensors of one dtype have in common if they hold the same values in whatever order.

    Zeros of both signs are the same. None where a dtype has no bits to look at. Read once, in blocks.
    """
    dtype, _ = plan_of(model)[name]
    if dtype.itemsize not in _INTEGERS:
        return None
    found, negative = 0, torch.iinfo(_INTEGERS[dtype.itemsize]).min
    for bits in _bits(model, name):
        if dtype.is_floating_point:
            bits[bits == negative] = 0
        found += int(_mixed(bits).sum())
    return found % 2**64


def _bits(model: Tensors, name: str) -> Iterator[Tensor]:
    """The values' bits as int64, some rows at a time, in memory of their own."""
    for block in blocks(model, name):
        rows = block.contiguous() if block.ndim else block.reshape(1)
        step = max(1, (1 << 18) // max(1, rows[:1].numel()))
        for part in rows.split(step):
            bits = part.reshape(-1).view(_INTEGERS[part.dtype.itemsize])
            yield bits.to(torch.int64, copy=True).view(part.shape)


def _mixed(bits: Tensor) -> Tensor:
    bits += 1
    bits *= _FIRST
    bits ^= bits >> 31
    bits *= _SECOND
    bits ^= bits >> 29
    return bits


def _add(found: dict[str, Tensor], axis: Axis, sums: Tensor, fitted: FittedSpec, salt: int) -> None:
    """Add what an axis tells of its words, mixed with which tensor it is of."""
    factors = factors_of(axis)
    sums = sums.view([fitted_length(factor, fitted.sizes) for factor in factors])
    for k, factor in enumerate(factors):
        if isinstance(factor, Word):
            others = [dim for dim in range(len(factors)) if dim != k]
            own = sums.sum(others) if others else sums.clone()
            own = _mixed(own + salt)
            found[factor.name] = found[factor.name] + own if factor.name in found else own
