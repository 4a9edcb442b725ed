"""Whether tensors of several models are the same, bit for bit; read in blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checkpoints.tensors import blocks, chunks
from ..types import Tensors, is_lazy


def alike(models: Sequence[Tensors], name: str) -> bool:
    """Whether all models that have this tensor have the same one, bit for bit."""
    first, *others = [model for model in models if name in model]
    return all(same(first, other, name) for other in others)


def same(one: Tensors, other: Tensors, name: str) -> bool:
    """Whether both have the same tensor, bit for bit, or neither has it. Read in blocks."""
    if name not in one or name not in other:
        return (name in one) == (name in other)
    if planned(one, name) != planned(other, name):
        return False
    both = zip(blocks(one, name), blocks(other, name), strict=True)
    return all(equal(one, other) for one, other in both)


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one dtype and shape are the same, bit for bit."""
    pairs = zip(chunks(one), chunks(other), strict=True)
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs)


def planned(tensors: Tensors, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
    """Dtype and shape of one tensor, without its values where the mapping knows them."""
    if is_lazy(tensors):
        return tensors.dtypes[name], tuple(tensors.shapes[name])
    return tensors[name].dtype, tuple(tensors[name].shape)
