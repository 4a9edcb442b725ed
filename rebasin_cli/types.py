"""Names for the values that all rooms pass on. They cost nothing to import: PyTorch is only named here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = Mapping[str, "torch.Tensor"]  # a model: tensors by name
Permutations: TypeAlias = Mapping[str, "torch.Tensor"]  # of each word int64 (n,), in the one convention
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]  # of tensors, by name
Batches: TypeAlias = Iterable[tuple[Any, Any]]  # inputs and targets, of any kind; read as often as asked for
