"""THE convention for elements, stated once: an order first, then a map.

An element of all words of a spec is a permutation set, as `symmetry.permutation` says, and for some words
a map that acts on the units as they then lie:

    (n,)        each unit times a number
    (n, n)      new = map @ old
    (H, D, D)   of a starred word: block k, as it then lies, becomes map[k] @ block

Elements compose, invert and act on checkpoints tensor by tensor; what only permutes is moved bit by bit, all
else is multiplied in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from ..checkpoints.tensors import LazyTensors, plan_of
from ..errors import CheckpointError
from ..groups import PERMUTATION, find
from ..spec.notation import words_of
from ..spec.spec import FittedSpec
from ..types import Permutations, Tensors
from . import index_maps, permutation
from .action import Maps, act


@dataclass(frozen=True)
class Elements:
    """One element for every word: `permutations` of all, `maps` (float64) of those that have more."""

    permutations: Permutations
    maps: Mapping[str, torch.Tensor] = field(default_factory=dict)


MAP = ":map"  # after a word's name where its map is stored beside its order: no word has a colon


def tensors_of(elements: Elements) -> dict[str, torch.Tensor]:
    """As it is stored: a word's order under its name, its map under `NAME:map`."""
    tensors = {word: perm.to(torch.int64).contiguous() for word, perm in elements.permutations.items()}
    return tensors | {f"{word}{MAP}": map_.double().contiguous() for word, map_ in elements.maps.items()}


def of_tensors(tensors: Tensors) -> Elements:
    """What `tensors_of` stored."""
    maps = {name.removesuffix(MAP): tensors[name] for name in tensors if name.endswith(MAP)}
    return Elements({name: tensors[name] for name in tensors if not name.endswith(MAP)}, maps)


def element_of(given: Elements | Permutations) -> Elements:
    """A bare permutation set as the element that it is."""
    return given if isinstance(given, Elements) else Elements(given)


def identity(fitted: FittedSpec) -> Elements:
    return Elements(permutation.identity(fitted.words))


def random(
    fitted: FittedSpec,
    rng: torch.Generator,
    *,
    of: Mapping[str, str] | None = None,
    balanced: bool = False,
) -> Elements:
    """A random element of every word's group, or of those that `of` names with a group each.

    Invertible matrices are drawn with singular values in 0.5 … 2, scales in 0.5 … 2; `balanced`: elements
    that leave a canonical form's balances as they are.
    """
    chosen = dict.fromkeys(fitted.words, PERMUTATION) | dict(fitted.groups) if of is None else of
    plain = {word: fitted.words[word] for word in chosen if find(chosen[word]).ordered}
    perms = permutation.identity(fitted.words) | permutation.random(plain, rng, within=fitted.within)
    perms = permutation.carried(perms, fitted.within)
    maps = {}
    for word in sorted(chosen):
        n, block = fitted.words[word], fitted.within.get(word)
        count, size = (1, n) if block is None else (block.count, block.size)
        drawn = [find(chosen[word]).drawn(size, rng, balanced=balanced) for _ in range(count)]
        if found := [map_ for map_ in drawn if map_ is not None]:
            maps[word] = found[0] if block is None else torch.stack(found)
    return Elements(perms, maps)


def compose(first: Elements, then: Elements, fitted: FittedSpec) -> Elements:
    """Acting by the result is acting by `first`, and by `then` on what came out."""
    maps = {}
    for word in sorted({*first.maps, *then.maps}):
        one, other = first.maps.get(word), then.maps.get(word)
        moved = None if one is None else _moved(one, word, then.permutations, fitted)
        if moved is not None and other is not None:
            maps[word] = other * moved if other.ndim == 1 else other @ moved
        elif (alone := other if moved is None else moved) is not None:
            maps[word] = alone
    return Elements(permutation.compose(first.permutations, then.permutations), maps)


def invert(elements: Elements, fitted: FittedSpec) -> Elements:
    back = permutation.invert(elements.permutations)
    maps = {
        word: _moved(1 / map_ if map_.ndim == 1 else torch.linalg.inv(map_), word, back, fitted)
        for word, map_ in elements.maps.items()
    }
    return Elements(back, maps)


def _moved(map_: torch.Tensor, word: str, perms: Permutations, fitted: FittedSpec) -> torch.Tensor:
    """P·map·P⁻¹: the same map of units that lie as these permutations put them."""
    if map_.ndim == 2:
        return map_[perms[word]][:, perms[word]]
    if map_.ndim == 3:
        return map_[index_maps.split(perms[word], fitted.within[word])[0]]
    return map_[perms[word]]


def check(elements: Elements, fitted: FittedSpec) -> None:
    """Raise CheckpointError unless every word has an element of its group.

    Rotations are held to 1e-6 of being orthogonal; what has no inverse is none of GL.
    """
    permutation.check(elements.permutations, fitted.words, within=fitted.within)
    problems = [f'"{word}" is no word of the spec' for word in elements.maps if word not in fitted.words]
    for word, map_ in elements.maps.items():
        if word in fitted.words and (why := _wrong(map_, word, fitted, elements.permutations)):
            problems.append(f'"{word}" {why}')
    for word, kind in fitted.groups.items():
        alone = word not in elements.maps or not find(kind).matrix
        if alone and not find(kind).permutes and not _stays(word, fitted, elements.permutations):
            problems.append(f'"{word}" has no order of its own in its group ({kind}), and is given one')
    if problems:
        raise CheckpointError("these elements do not fit the spec", problems=sorted(problems))


def _wrong(map_: torch.Tensor, word: str, fitted: FittedSpec, perms: Permutations) -> str:
    n, block, group = fitted.words[word], fitted.within.get(word), fitted.group(word)
    if word not in fitted.groups:
        return group.wrong(map_)
    wanted = (n,) if not group.matrix else (n, n) if block is None else (block.count, *[block.size] * 2)
    if tuple(map_.shape) != wanted or not map_.is_floating_point() or map_.dtype.itemsize == 1:
        return f"has a map {tuple(map_.shape)} {map_.dtype}, expected {wanted} of float16 or wider"
    map_ = map_.double()
    if not bool(map_.isfinite().all()):
        return "has a map with NaN or infinite values"
    if group.matrix and not _stays(word, fitted, perms):
        return "has a map and an order of its own; an element of a matrix group is one matrix"
    return group.wrong(map_)


def _stays(word: str, fitted: FittedSpec, perms: Permutations) -> bool:
    """Whether the units lie as they lay; of a starred word within each block."""
    block, order = fitted.within.get(word), perms[word]
    if block is None:
        return torch.equal(order, torch.arange(len(order)))
    return torch.equal(order % block.size, torch.arange(block.size).repeat(block.count))


def acted(tensors: Tensors, fitted: FittedSpec, elements: Elements) -> LazyTensors:
    """A model as the elements make it, tensor by tensor as they are asked for; the input is untouched.

    Raises CheckpointError where more than an order acts on integers or quantised numbers.
    """
    plan = plan_of(tensors)
    check_dtypes({name: dtype for name, (dtype, _) in plan.items()}, fitted, elements.maps.keys())
    moved = permutation.permuted(tensors, fitted, elements.permutations)
    if not elements.maps:
        return moved
    maps = maps_of(elements)

    def read(name: str) -> torch.Tensor:
        return act(moved[name], fitted.tensors.get(name, ()), fitted, maps)

    return LazyTensors({n: s for n, (_, s) in plan.items()}, {n: d for n, (d, _) in plan.items()}, read)


def check_dtypes(dtypes: Mapping[str, torch.dtype], fitted: FittedSpec, mapped: Collection[str]) -> None:
    """Raise CheckpointError where words that are `mapped` stand in integers or quantised numbers."""
    problems = []
    for name, dtype in dtypes.items():
        words = {word for axis in fitted.tensors.get(name, ()) for word in words_of(axis)}
        if (dtype.itemsize == 1 or not dtype.is_floating_point) and (more := words.intersection(mapped)):
            told = ", ".join(f'"{word}"' for word in sorted(more))
            problems.append(f"{name}  {str(dtype).removeprefix('torch.')}, and {told} is more than an order")
    if problems:
        raise CheckpointError(
            "integers and quantised numbers can be permuted, not rotated or scaled",
            problems=problems,
            hint="Match by --groups permutations, or give the weights as they were before quantisation",
        )


def maps_of(elements: Elements) -> Maps:
    """Each word's map, and its inverse's transpose."""
    return {word: (map_.double(), _dual(map_.double())) for word, map_ in elements.maps.items()}


def _dual(map_: torch.Tensor) -> torch.Tensor:
    return 1 / map_ if map_.ndim == 1 else torch.linalg.inv(map_).mT
