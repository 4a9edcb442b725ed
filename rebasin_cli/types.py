"""Names for the values that all rooms pass on. They cost nothing to import: PyTorch is only named here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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


# What a metric cannot be called: these words mean something else in gates and in JSON.
TAKEN = ("loss", "ece", "samples", "lambdas", "each", "count", "reliability", "intervals", "name",
         "row", "other", "split", "barrier", "chord", "midpoint", "drop", "rise", "test", "train", "shipped",
         "pairs", "mean", "metrics", "gap", "weights", "bins", "data", "file", "gates")  # fmt: skip


@dataclass(frozen=True)
class Quantity:
    """What a measured number is of: its name, its unit ("" for none), which way is better, where it lies.

    A loss and a metric say this of themselves once, where the option that names them is opened. What shows,
    compares or judges a figure reads it here, and has no words of its own for it.
    """

    name: str
    unit: str = ""
    larger_is_better: bool = True
    range: tuple[float, float] = (-math.inf, math.inf)

    @property
    def key(self) -> str:
        """Its name in gates and in JSON: one word."""
        return re.sub(r"\W+", "_", self.name).strip("_").lower()

    @property
    def in_unit(self) -> str:
        """The unit after a number, " nats"; "" without one."""
        return f" {self.unit}" if self.unit else ""

    @property
    def is_share(self) -> bool:
        """Whether it lies in 0–1, so that a limit may be in per cent."""
        return not self.unit and self.range == (0.0, 1.0)

    @property
    def spread(self) -> str:
        """Where it lies, or in what it is: "0–1", "nats"; "" where neither was told."""
        if self.unit:
            return self.unit
        low, high = self.range
        return f"{low:g}–{high:g}" if math.isfinite(low) and math.isfinite(high) else ""

    @property
    def titled(self) -> str:
        """For an axis or a column: "accuracy, 0–1"."""
        return f"{self.name}, {self.spread}" if self.spread else self.name

    @property
    def sign(self) -> float:
        """1 where smaller is better, −1 where larger is: times it, more is worse."""
        return -1.0 if self.larger_is_better else 1.0


CROSS_ENTROPY = Quantity("cross-entropy", "nats", False, (0.0, math.inf))
ACCURACY = Quantity("accuracy", "", True, (0.0, 1.0))


def aside(loss: str) -> str:
    """The name of a loss after the word "loss": " (regret)"; "" where it would say nothing more."""
    return "" if loss in (CROSS_ENTROPY.name, "loss") else f" ({loss})"
