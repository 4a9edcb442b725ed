"""THE convention, stated once:

    perm[i] is the old position of the unit that is now at i;
    permuting axis a of a tensor is index_select(a, perm);
    the reference model always has the identity.

A permutation set maps each word of a spec to an int64 tensor of shape (n,) that holds every number of
0 … n−1 once. Composing "first p, then q" gives p[q].

A starred word `d*` within a word p of H units, D in each, has one permutation of all H·D units; each unit
of p is a block of D that stays together: d[k·D : (k+1)·D] // D is p[k]. Inverting and composing keep that.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..checkpoints.tensors import LazyTensors, in_memory, plan_of, rows
from ..errors import CheckpointError
from ..spec.notation import Axis, Fixed, words_of
from ..spec.spec import FittedSpec
from ..types import Permutations, Tensors
from .index_maps import PLAIN, Within, axis_index, elsewhere, indices_of, join, split
from .lists import check_lists, listed

BLOCK = 1 << 20  # bytes: half of a second-level cache
FEW = 0.15  # of the units: more are copied sooner with all others


def identity(words: Mapping[str, int]) -> dict[str, torch.Tensor]:
    return {word: torch.arange(size) for word, size in words.items()}


def random(
    words: Mapping[str, int], generator: torch.Generator, *, within: Within = PLAIN
) -> dict[str, torch.Tensor]:
    """Uniform permutations, drawn in the order of the words' names.

    The blocks of a starred word lie as its outer word says, in order where that is not among `words`.
    """
    drawn = {}
    for word in sorted(words):
        if (block := within.get(word)) is None:
            drawn[word] = torch.randperm(words[word], generator=generator)
        else:
            orders = [torch.randperm(block.size, generator=generator) for _ in range(block.count)]
            drawn[word] = join(torch.arange(block.count), torch.stack(orders))
    return carried(drawn, within)


def carried(permutations: Permutations, within: Within) -> dict[str, torch.Tensor]:
    """The same permutations, the blocks of starred words moved to where their outer words say.

    Each block keeps the order within. What is consistent already stays as it is.
    """
    result = dict(permutations)
    for word in result.keys() & within.keys():
        block = within[word]
        if block.word is not None and (outer := result.get(block.word)) is not None:
            blocks, inner = split(result[word], block)
            result[word] = join(outer, inner[torch.argsort(blocks)[outer]])
    return result


def invert(permutations: Permutations) -> dict[str, torch.Tensor]:
    return {word: torch.argsort(perm) for word, perm in permutations.items()}


def compose(first: Permutations, then: Permutations) -> dict[str, torch.Tensor]:
    """Applying the result is applying `first`, and `then` to what came out."""
    return {word: perm[then[word]] for word, perm in first.items()}


def is_identity(permutations: Permutations) -> bool:
    return all(torch.equal(perm, torch.arange(len(perm))) for perm in permutations.values())


def check(permutations: Permutations, words: Mapping[str, int], *, within: Within = PLAIN) -> None:
    """Raise CheckpointError unless there is one bijection of the right size for every word.

    Those of starred words must also keep their blocks together, and order them as the outer word does.
    """
    problems = [f'"{word}" has no permutation' for word in words if word not in permutations]
    problems += [f'"{word}" is not a word of the spec' for word in permutations if word not in words]
    for word in words.keys() & permutations.keys():
        perm = permutations[word]
        if perm.dtype != torch.int64 or perm.shape != (words[word],):
            problems.append(f'"{word}" has {tuple(perm.shape)} {perm.dtype}, expected ({words[word]},) int64')
        elif not torch.equal(perm.sort().values, torch.arange(words[word])):
            problems.append(f'"{word}" is not a bijection')
    for word in [] if problems else within:
        block = within[word]
        outer = torch.arange(block.count) if block.word is None else permutations[block.word]
        if not (permutations[word].view(block.count, block.size) // block.size == outer[:, None]).all():
            why = "in place" if block.word is None else f'ordered as "{block.word}"'
            problems.append(f'"{word}" does not keep its {block.count} blocks of {block.size} units {why}')
    if problems:
        raise CheckpointError("these permutations do not fit the spec", problems=sorted(problems))


def permute(
    tensor: torch.Tensor,
    axes: tuple[Axis, ...],
    permutations: Permutations,
    within: Within = PLAIN,
    *,
    room: torch.Tensor | None = None,
    known: dict[Axis, torch.Tensor | None] | None = None,
) -> torch.Tensor:
    """One tensor with every axis permuted; the tensor itself where nothing moves.

    `room` of its shape and dtype may hold the result: new memory of a large tensor costs more than moving it.
    `known` keeps what each axis is indexed by, for other tensors with the same permutations.
    """
    if within and any(elsewhere(axis, within) for axis in axes):
        words = {word for axis in axes for word in words_of(axis)}
        if is_identity({word: permutations[word] for word in words}):
            return tensor
        return _gather(tensor, axes, permutations, within)
    known, moved = {} if known is None else known, {}
    for dim, axis in enumerate(axes):
        if isinstance(axis, Fixed):
            continue
        if axis not in known:
            found = axis_index(axis, permutations, within)
            known[axis] = None if torch.equal(found, torch.arange(len(found))) else found
        if (index := known[axis]) is not None:
            moved[dim] = index.to(tensor.device)
    return _select(tensor, moved, room) if moved else tensor


def _select(
    tensor: torch.Tensor, moved: Mapping[int, torch.Tensor], room: torch.Tensor | None
) -> torch.Tensor:
    """Several axes gathered at once: the second of what a cache still holds of the first."""
    if tensor.requires_grad and torch.is_grad_enabled():
        for dim, index in moved.items():
            tensor = tensor.index_select(dim, index)
        return tensor
    if room is None:
        room = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    here, there = _bytes(tensor), _bytes(room)
    if len(moved) == 1:
        ((dim, index),) = moved.items()
        torch.index_select(here, dim, index, out=there)
        return room
    step = max(1, len(tensor))
    if tensor.device.type == "cpu":
        step = max(1, BLOCK * step // max(1, tensor.numel() * tensor.element_size()))
    for start in range(0, len(tensor), step):
        block = slice(start, start + step)
        part = here if 0 in moved else here[block]
        *others, (last, index) = [(dim, index[block] if dim == 0 else index) for dim, index in moved.items()]
        for dim, other in others:
            part = part.index_select(dim, other)
        torch.index_select(part, last, index, out=there[block])
    return room


def permute_(
    tensor: torch.Tensor, axes: tuple[Axis, ...], permutations: Permutations, within: Within = PLAIN
) -> None:
    """`permute` in place; where few units move, only those are copied."""
    if any(elsewhere(axis, within) for axis in axes):
        tensor.copy_(permute(tensor, axes, permutations, within))
        return
    order = in_memory(tensor)
    lying = tensor.permute(order)
    for dim, axis in enumerate(axes):
        if isinstance(axis, Fixed):
            continue
        index = axis_index(axis, permutations, within)
        moved = torch.nonzero(index != torch.arange(len(index))).flatten()
        at, here = order.index(dim), lying
        if at > 1 and lying.is_contiguous():  # of a matrix columns are gathered much sooner
            at, here = 1, lying.flatten(0, at - 1)
        if len(moved) > FEW * len(index):
            here.copy_(index_select(here, at, index.to(tensor.device)))
        elif len(moved):
            part = index_select(here, at, index[moved].to(tensor.device))
            _bytes(here).index_copy_(at, moved.to(tensor.device), _bytes(part))


def _gather(
    tensor: torch.Tensor,
    axes: tuple[Axis, ...],
    permutations: Permutations,
    within: Within,
    rows: slice = slice(None),
) -> torch.Tensor:
    """`permute` for axes whose order depends on where one is on another axis: `i*` in "(g o*) i*"."""
    indices = indices_of(tensor.shape, axes, permutations, within, rows)
    return _bytes(tensor)[tuple(index.to(tensor.device) for index in indices)].view(tensor.dtype)


def index_select(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """torch's own, for float8 as well."""
    return _bytes(tensor).index_select(dim, index).view(tensor.dtype)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as what can be indexed: float8 cannot, but its bytes move just as well."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def permuted(tensors: Tensors, fitted: FittedSpec, permutations: Permutations) -> LazyTensors:
    """A model with its units permuted, tensor by tensor as they are asked for; the input is untouched.

    A tensor of a list is read from wherever it lay. Raises CheckpointError for lists of several dtypes.
    """
    plan = plan_of(tensors)
    check_lists({name: dtype for name, (dtype, _) in plan.items()}, fitted)
    last: tuple[str, torch.Tensor] | None = None  # the tensor that is asked for in parts is read once
    known: dict[Axis, torch.Tensor | None] = {}

    def whole(name: str) -> torch.Tensor:
        nonlocal last
        if last is None or last[0] != name:
            last = None
            last = name, tensors[name]
        return last[1]

    def get(name: str) -> torch.Tensor:
        old, axes, own, within = listed(name, fitted, permutations)
        return permute(tensors[old], axes, own, within, known=known if own is permutations else None)

    def part(name: str, start: int, stop: int) -> torch.Tensor:
        old, axes, own, within = listed(name, fitted, permutations)
        axes = axes or (Fixed(),)
        if any(elsewhere(axis, within) for axis in axes):
            return _gather(whole(old), axes, own, within, slice(start, stop))
        first, *others = axes
        if isinstance(first, Fixed):
            chosen = rows(tensors, old, start, stop)
        else:
            tensor = whole(old)
            index = axis_index(first, own, within)[start:stop]
            chosen = index_select(tensor, 0, index.to(tensor.device))
        return permute(chosen, (Fixed(), *others), own, within)

    return LazyTensors(
        {name: shape for name, (_, shape) in plan.items()},
        {name: dtype for name, (dtype, _) in plan.items()},
        get,
        part,
    )
