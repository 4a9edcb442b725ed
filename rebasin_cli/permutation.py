"""THE convention, stated once:

    perm[i] is the old position of the unit that is now at i;
    permuting axis a of a tensor is index_select(a, perm);
    the reference model always has the identity.

A permutation set maps each word of a spec to an int64 tensor of shape (n,) that holds every number of
0 … n−1 once. Composing "first p, then q" gives p[q].
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from .checkpoint import open_checkpoint
from .errors import CheckpointError
from .spec.notation import Axis, Fixed, Product, Word
from .spec.spec import FittedSpec
from .tensors import LazyTensors, plan_of, rows
from .writing import write_safetensors

Permutations = Mapping[str, torch.Tensor]
Tensors = Mapping[str, torch.Tensor]


def identity(words: Mapping[str, int]) -> dict[str, torch.Tensor]:
    return {word: torch.arange(size) for word, size in words.items()}


def random(words: Mapping[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Uniform permutations, drawn in the order of the words' names."""
    return {word: torch.randperm(words[word], generator=generator) for word in sorted(words)}


def invert(permutations: Permutations) -> dict[str, torch.Tensor]:
    return {word: torch.argsort(perm) for word, perm in permutations.items()}


def compose(first: Permutations, then: Permutations) -> dict[str, torch.Tensor]:
    """Applying the result is applying `first`, and `then` to what came out."""
    return {word: perm[then[word]] for word, perm in first.items()}


def is_identity(permutations: Permutations) -> bool:
    return all(torch.equal(perm, torch.arange(len(perm))) for perm in permutations.values())


def check(permutations: Permutations, words: Mapping[str, int]) -> None:
    """Raise CheckpointError unless there is one bijection of the right size for every word."""
    problems = [f'"{word}" has no permutation' for word in words if word not in permutations]
    problems += [f'"{word}" is not a word of the spec' for word in permutations if word not in words]
    for word in words.keys() & permutations.keys():
        perm = permutations[word]
        if perm.dtype != torch.int64 or perm.shape != (words[word],):
            problems.append(f'"{word}" has {tuple(perm.shape)} {perm.dtype}, expected ({words[word]},) int64')
        elif not torch.equal(perm.sort().values, torch.arange(words[word])):
            problems.append(f'"{word}" is not a bijection')
    if problems:
        raise CheckpointError("these permutations do not fit the spec", problems=sorted(problems))


def axis_index(axis: Axis, permutations: Permutations) -> torch.Tensor:
    """Old positions, in the new order, of all entries along one axis."""
    if isinstance(axis, Word):
        return permutations[axis.name]
    if isinstance(axis, Fixed):
        return torch.arange(axis.size)
    if isinstance(axis, Product):
        index = torch.zeros(1, dtype=torch.int64)
        for factor in axis.factors:
            inner = axis_index(factor, permutations)
            index = (index[:, None] * len(inner) + inner).reshape(-1)
        return index
    parts, offset = [], 0
    for term in axis.terms:
        part = axis_index(term, permutations)
        parts.append(part + offset)
        offset += len(part)
    return torch.cat(parts)


def permute(tensor: torch.Tensor, axes: tuple[Axis, ...], permutations: Permutations) -> torch.Tensor:
    """One tensor with every axis permuted; the tensor itself where nothing moves."""
    for dim, axis in enumerate(axes):
        if isinstance(axis, Fixed):
            continue
        index = axis_index(axis, permutations)
        if not torch.equal(index, torch.arange(len(index))):
            tensor = index_select(tensor, dim, index.to(tensor.device))
    return tensor


def index_select(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """torch's own, for float8 as well."""
    if tensor.dtype.itemsize == 1:  # float8 has no index_select of its own; bytes move just as well
        return tensor.view(torch.uint8).index_select(dim, index).view(tensor.dtype)
    return tensor.index_select(dim, index)


def permuted(tensors: Tensors, fitted: FittedSpec, permutations: Permutations) -> LazyTensors:
    """A model with its units permuted, tensor by tensor as they are asked for; the input is untouched."""
    plan = plan_of(tensors)

    def part(name: str, start: int, stop: int) -> torch.Tensor:
        first, *others = fitted.tensors.get(name, (Fixed(),))
        if isinstance(first, Fixed):
            chosen = rows(tensors, name, start, stop)
        else:
            whole = tensors[name]
            index = axis_index(first, permutations)[start:stop]
            chosen = index_select(whole, 0, index.to(whole.device))
        return permute(chosen, (Fixed(), *others), permutations)

    return LazyTensors(
        {name: shape for name, (_, shape) in plan.items()},
        {name: dtype for name, (dtype, _) in plan.items()},
        lambda name: permute(tensors[name], fitted.tensors.get(name, ()), permutations),
        part,
    )


def save(path: Path, permutations: Permutations, *, metadata: Mapping[str, str], force: bool = False) -> None:
    """Write a permutation set to `*.perm.safetensors`."""
    tensors = {word: perm.to(torch.int64).contiguous() for word, perm in permutations.items()}
    write_safetensors(path, tensors, metadata={"rebasin.kind": "permutations", **metadata}, force=force)


def load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """A permutation set and its metadata. Raises CheckpointError for any other file."""
    checkpoint = open_checkpoint(path)
    if checkpoint.metadata.get("rebasin.kind") != "permutations":
        raise CheckpointError(
            f"{path} is not a permutation file",
            hint="rebasin align writes one beside its output: *.perm.safetensors",
        )
    return {word: checkpoint[word] for word in checkpoint}, dict(checkpoint.metadata)
