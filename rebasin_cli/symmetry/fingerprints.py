"""An exact relabelling found without a search: every unit is known by the bits of its values.

A unit's fingerprint is a sum of numbers mixed from the bits of its values, in all tensors: the order of all
other units does not change it. Units of two models with equal fingerprints are paired; whether that is right
is for who asks to see, by comparing values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from ..checkpoints.tensors import blocks, plan_of
from ..runtime.ranks import ALONE, Ranks
from ..spec.notation import Axis, Word, factors_of, fitted_length
from ..spec.spec import FittedSpec
from ..types import Permutations, Tensors

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
TOGETHER = 1 << 17  # values mixed at once: a cache holds what comes of them
_FIRST, _SECOND = -7046029254386353131, -4417276706812531889  # odd, with bits all over


Look = Callable[[Tensor], None]


def relabelling(
    a: Tensors, b: Tensors, fitted: FittedSpec, ranks: Ranks = ALONE, *, look: Look = lambda block: None
) -> Permutations | None:
    """The order of B's units that may turn it into A; None where fingerprints find none.

    Both are read once, by each of several `ranks` tensors of its own, and every block of what is `read` is
    given to `look`. They do not tell of starred words, of lists, and of words that are on no axis by
    themselves; that there is none they tell of values that differ in a bit, or in dtype.
    """
    plan = plan_of(a)
    known = all(dtype.itemsize in _INTEGERS for dtype, _ in plan.values())
    if fitted.within or fitted.stacks or not known or plan != plan_of(b):
        return None
    ours, theirs = _fingerprints([a, b], fitted, ranks, look)
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
    models: Sequence[Tensors], fitted: FittedSpec, ranks: Ranks, look: Look
) -> tuple[dict[str, Tensor], ...]:
    """{word: one number a unit} of every model: sums of what each rank has of its tensors, in any order."""
    mine = ranks.share([*fitted.tensors], [math.prod(fitted.shapes[name]) for name in fitted.tensors])
    own = ranks.each(lambda: [_own_fingerprints(model, fitted, mine, look) for model in models])
    whole: tuple[dict[str, Tensor], ...] = tuple({} for _ in models)
    for parts in ranks.all(own):
        for into, part in zip(whole, parts, strict=True):
            for word, sums in part.items():
                into[word] = into[word] + sums if word in into else sums
    return whole


def read(fitted: FittedSpec) -> frozenset[str]:
    """The tensors that `relabelling` reads."""
    return frozenset(name for name in fitted.tensors if _telling(fitted, name))


def _telling(fitted: FittedSpec, name: str) -> dict[int, Axis]:
    """The axes that tell units of this tensor apart."""
    return {
        dim: axis
        for dim, axis in enumerate(fitted.tensors[name])
        if 0 not in fitted.shapes[name] and any(isinstance(factor, Word) for factor in factors_of(axis))
    }


def _own_fingerprints(
    model: Tensors, fitted: FittedSpec, names: Collection[str], look: Look
) -> dict[str, Tensor]:
    """The same of some tensors alone."""
    found: dict[str, Tensor] = {}
    for number, name in enumerate(sorted(fitted.tensors)):
        if name in names and (telling := _telling(fitted, name)):
            for dim, sums in _sums(model, name, fitted.shapes[name], telling, look).items():
                _add(found, telling[dim], sums, fitted, 2 * number + 1)
    return found


def _sums(
    model: Tensors, name: str, shape: tuple[int, ...], dims: Collection[int], look: Look
) -> dict[int, Tensor]:
    """Of each axis, what is at each position on it: the sum of what all values' bits are mixed to."""
    made = {dim: torch.zeros(shape[dim], dtype=torch.int64) for dim in dims}
    start = 0
    for mixed in _mixed_bits(model, name, look):
        for dim, into in made.items():
            others = [k for k in range(len(shape)) if k != dim]
            sums = mixed.sum(others) if others else mixed
            if dim == 0:
                into[start : start + len(mixed)] = sums
            else:
                into += sums
        start += len(mixed)
    return made


def of_values(model: Tensors, name: str) -> int | None:
    """A number that tensors of one dtype have in common if they hold the same values in whatever order.

    Zeros of both signs are the same. None where a dtype has no bits to look at. Read once, in blocks.
    """
    dtype, _ = plan_of(model)[name]
    if dtype.itemsize not in _INTEGERS:
        return None
    zeros = dtype.is_floating_point  # of both signs
    return sum(int(mixed.sum()) for mixed in _mixed_bits(model, name, zeros=zeros)) % 2**64


def _mixed_bits(
    model: Tensors, name: str, look: Look = lambda block: None, *, zeros: bool = False
) -> Iterator[Tensor]:
    """What the values' bits are mixed to, int64, some rows at a time; with `zeros` −0 is as 0."""
    dtype, _ = plan_of(model)[name]
    integer = _INTEGERS[dtype.itemsize]
    least = torch.iinfo(integer).min
    table = _every(least, zeros) if dtype.itemsize <= 2 else None
    for block in blocks(model, name):
        look(block)
        rows = block.contiguous() if block.ndim else block.reshape(1)
        for part in rows.split(max(1, TOGETHER // max(1, rows[:1].numel()))):
            bits = part.reshape(-1).view(integer)
            if table is not None:
                mixed = table.index_select(0, bits.to(torch.int32).sub_(least))
            else:
                bits = bits.to(torch.int64, copy=True)
                if zeros:
                    bits[bits == least] = 0
                mixed = _mixed(bits)
            yield mixed.view(part.shape)


@cache
def _every(least: int, zeros: bool) -> Tensor:
    """All values of so few bits, mixed, from the least: to look one up takes less than to mix it."""
    every = torch.arange(least, -least)
    every[0] = 0 if zeros else least
    return _mixed(every)


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
