"""The numbers that decide: what a network compares, counts or picks by, which no output is computed from.

A threshold that is never crossed in a trial hides all that stands behind it: a wrong axis of the weight that
only ends a loop changes no output. So the numbers that whole numbers, truths and lengths were made of are
compared, too, where Python looks at these, where they say how much there is of something, and where an output
is computed from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ..graph.float64 import Uncompiled
from ..graph.operations import operation_of
from .comparing import difference

COMPARISONS = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "equal", "isclose", "allclose"})
STEPS = frozenset({"round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside"})  # floating, but in steps
# What gives whole numbers beside others, or in place of them, and decides nothing by them:
BESIDE = frozenset({"pool", "dropout", "attention", "constant"})
Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Decided:
    """Numbers that decided: by operation and shape what they are, (n,) float64, and how large at most."""

    rows: tuple[tuple[Key, torch.Tensor, float], ...] = ()

    def __add__(self, other: Decided) -> Decided:
        return Decided(self.rows + other.rows)

    def difference(self, other: Decided) -> float:
        """How far others are from these, relatively; infinite where they are more, fewer, or of other shapes.

        In order of size: experts that change places ask in another order.
        """
        ours, theirs = self._sorted(), other._sorted()
        if ours.keys() != theirs.keys():
            return math.inf
        return max(
            (difference([ours[key][0]], [theirs[key][0]], [ours[key][1]]) for key in ours), default=0.0
        )

    def _sorted(self) -> dict[Key, tuple[torch.Tensor, torch.Tensor]]:
        rows: dict[Key, list[tuple[torch.Tensor, float]]] = {}
        for key, values, size in self.rows:
            rows.setdefault(key, []).append((values, size))
        tiny = torch.finfo(torch.float64).tiny
        return {
            key: (torch.cat([values for values, _ in row]).sort().values,
                  torch.tensor(max(tiny, *(size for _, size in row)), dtype=torch.float64))
            for key, row in rows.items()
        }  # fmt: skip


class Decisions(Uncompiled):
    """While it lasts, keeps the numbers of which others in steps were made.

    What follows from these is known by its memory, so that views of it are, too. `found` says which numbers
    decided on what the network returned.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[Key, torch.Tensor, float]] = []  # what decides, and how large it is
        # By memory, of which of them; while it is referred to, no other storage has its number.
        self._from: dict[int, tuple[StorageWeakRef, frozenset[int]]] = {}
        self._decided: frozenset[int] = frozenset()  # what is seen outside of tensors

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        read = _tensors((args, kwargs))
        floating = [tensor for tensor in read if tensor.is_floating_point() and tensor.numel()]
        looks = torch.Tag.data_dependent_output in func.tags
        behind = self._behind(read)
        made = _tensors(result)
        if floating and (looks or _in_steps(func, made)):
            behind |= self._kept(func, floating)
        if looks:
            self._decided |= behind
        elif torch.Tag.dynamic_output_shape in func.tags:
            self._decided |= self._behind([tensor for tensor in read if not tensor.is_floating_point()])
        if behind:
            for tensor in made:
                self._from[_memory(tensor)] = StorageWeakRef(tensor.untyped_storage()), behind
        return result

    @property
    def any(self) -> bool:
        """Whether there is anything in steps."""
        return bool(self._made)

    def found(self, outputs: Sequence[torch.Tensor]) -> Decided:
        """What decided on these outputs."""
        return Decided(tuple(self._made[k] for k in sorted(self._decided | self._behind(outputs))))

    def _behind(self, tensors: Sequence[torch.Tensor]) -> frozenset[int]:
        known = filter(None, (self._from.get(_memory(tensor)) for tensor in tensors))
        return frozenset().union(*(numbers for _, numbers in known))

    def _kept(self, func: Any, tensors: Sequence[torch.Tensor]) -> frozenset[int]:
        """Numbers of what decides from now on: of what is compared, the distance, of all else itself."""
        first = len(self._made)
        for values in _decisive(func, tensors):
            told = torch.nan_to_num(values.detach(), nan=0.0, posinf=0.0, neginf=0.0).flatten().double()
            size = max(float(torch.nan_to_num(one.detach().abs(), posinf=0.0).max()) for one in tensors)
            self._made.append(((func._opname, tuple(values.shape)), told, size))
        return frozenset(range(first, len(self._made)))


def _decisive(func: Any, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    if func._opname in COMPARISONS and len(tensors) == 2:
        one, other = tensors
        yield one - torch.where(other.isfinite(), other, 0.0)
    else:
        yield from tensors


def _in_steps(func: Any, made: Sequence[torch.Tensor]) -> bool:
    """Whether what it makes of floating numbers is whole, true or false, or in steps."""
    if operation_of(func, func._opname).kind in BESIDE:
        return False
    return func._opname in STEPS or any(not one.is_floating_point() and not one.is_complex() for one in made)


def _tensors(given: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
