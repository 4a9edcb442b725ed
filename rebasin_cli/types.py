"""Names for the values that all rooms pass on. They cost nothing to import: PyTorch is only named here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = Mapping[str, "torch.Tensor"]  # a model: tensors by name
Permutations: TypeAlias = Mapping[str, "torch.Tensor"]  # of each word int64 (n,), in the one convention
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]  # of tensors, by name
Batches: TypeAlias = Iterable[tuple[Any, Any]]  # inputs and targets, of any kind; read as often as asked for


class Lazy(Protocol):
    """A mapping of tensors that are read or made when asked for, and what of them is known before.

    A `Checkpoint` and `LazyTensors` are that; a dictionary of tensors is not, and `is_lazy` tells.
    """

    @property
    def shapes(self) -> Shapes: ...

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]: ...

    def __getitem__(self, name: str, /) -> torch.Tensor: ...

    def __iter__(self) -> Iterator[str]: ...


def is_lazy(tensors: object) -> TypeGuard[Lazy]:
    """Whether shapes and dtypes are known, so that no tensor need be made for them."""
    return hasattr(tensors, "shapes") and hasattr(tensors, "dtypes")  # quicker than a Protocol's isinstance
