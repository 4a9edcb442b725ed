"""The numbers that decide: what a network compares, counts or picks by, which no output is computed from.

A threshold that is never crossed in a trial hides all that stands behind it: a wrong axis of the weight that
only ends a loop changes no output. So the numbers that whole numbers, truths and lengths were made of are
compared, too, where Python looks at these, where they say how much there is of something, and where an output
is computed from them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from ..graph.answers import asking
from ..graph.float64 import Uncompiled, tensors_among
from ..graph.operations import operation_of
from ..graph.recorder import LEAVING, VALUES
from .distance import difference
from .means import DROPPING

NOTHING: frozenset[int] = frozenset()
COPIES = frozenset({"__deepcopy__", "__reduce_ex__"})  # which are made where nothing is dispatched
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
    decided on what the network returned; `written` are those of the `given` tensors that it wrote into;
    `places` those in the code where values may decide what runs; and `drops` whether chance dropped entries.
    """

    def __init__(self, given: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._given = {_memory(tensor): tensor for tensor in given if tensor.numel()}
        self.written: dict[int, torch.Tensor] = {}
        self.drops = False
        self.places: set[tuple[str, int]] = set()  # file and line of what Python learns of numbers
        self._outside = sys._getframe(1)
        self._leaving = _Leaving(self)
        self._made: list[tuple[Key, torch.Tensor, float]] = []  # what decides, and how large it is
        # By memory, of which of them, and whether of nothing else; while it is referred to, no other storage
        # has its number.
        self._from: dict[int, tuple[StorageWeakRef, frozenset[int], bool]] = {}
        self._decided = NOTHING  # what is seen outside of tensors

    def __enter__(self) -> Decisions:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._leaving.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        self._leaving.__exit__(*raised)  # type: ignore[no-untyped-call]
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def leaves(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor's numbers go where nobody follows them, so they decide; of a copy what it is made of."""
        self._decided |= self._behind([tensor])
        if name in VALUES:
            self._asked()
        if name not in COPIES and (floating := self._floating([tensor])):
            self._decided |= self._kept(name, floating)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            self._follow(func, tensors_among((args, kwargs)), tensors_among(result), kwargs or {})
        return result

    def _follow(
        self, func: Any, read: list[torch.Tensor], made: list[torch.Tensor], kwargs: dict[str, Any]
    ) -> None:
        does = _does(func)
        self.drops |= func._opname == DROPPING
        if does.writes and read and (own := self._given.get(_memory(read[0]))) is not None:
            self.written[_memory(read[0])] = own
        behind, new = self._behind(read), NOTHING
        steps = does.steps or kwargs.get("rounding_mode") is not None
        if does.looks or steps or (not does.beside and _whole(made)):
            if floating := self._floating(read):
                new = self._kept(func._opname, floating)
        if does.looks or does.counts:
            self._asked()
        if does.looks:
            self._decided |= behind | new
        elif does.counts:
            whole = [tensor for tensor in read if not tensor.is_floating_point()]
            self._decided |= self._behind(whole) | new
        behind |= new
        if behind:
            alone = steps or not self._floating(read)
            for tensor in made:
                storage = StorageWeakRef(tensor.untyped_storage())
                self._from[_memory(tensor)] = storage, behind, alone

    def _asked(self) -> None:
        if (place := asking(self._outside)) is not None:
            self.places.add(place[:2])

    @property
    def any(self) -> bool:
        """Whether there is anything in steps."""
        return bool(self._made)

    def found(self, outputs: Sequence[torch.Tensor]) -> Decided:
        """What decided on these outputs."""
        return Decided(tuple(self._made[k] for k in sorted(self._decided | self._behind(outputs))))

    def _behind(self, tensors: Sequence[torch.Tensor]) -> frozenset[int]:
        if not self._from:
            return NOTHING
        known = filter(None, (self._from.get(_memory(tensor)) for tensor in tensors))
        return frozenset().union(*(numbers for _, numbers, _ in known))

    def _floating(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those whose numbers are compared: not what was made of others that are, and of nothing else."""
        return [
            tensor
            for tensor in tensors
            if tensor.is_floating_point()
            and tensor.numel()
            and not self._from.get(_memory(tensor), (None, NOTHING, False))[2]
        ]

    def _kept(self, name: str, tensors: Sequence[torch.Tensor]) -> frozenset[int]:
        """Numbers of what decides from now on: of what is compared, the distance, of all else itself."""
        first = len(self._made)
        for values in _decisive(name, tensors):
            told = torch.nan_to_num(values.detach(), nan=0.0, posinf=0.0, neginf=0.0).flatten().double()
            size = max(float(torch.nan_to_num(one.detach().abs(), posinf=0.0).max()) for one in tensors)
            self._made.append(((name, tuple(values.shape)), told, size))
        return frozenset(range(first, len(self._made)))


class _Leaving(TorchFunctionMode):
    """Sees what is dispatched nowhere: numbers that leave PyTorch."""

    def __init__(self, decisions: Decisions):
        super().__init__()
        self._decisions = decisions

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if (name in LEAVING or name in COPIES) and args and isinstance(args[0], torch.Tensor):
            self._decisions.leaves(name, args[0])
        return func(*args, **(kwargs or {}))


def _decisive(name: str, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    if operation_of(None, name).distance and len(tensors) == 2:
        one, other = tensors
        yield one - torch.where(other.isfinite(), other, 0.0)
    else:
        yield from tensors


@dataclass(frozen=True)
class _Does:
    """An operation: whether it `writes` into what it reads, `looks` at numbers, and `counts` them.

    And whether what it gives is in `steps`, or whole numbers `beside` others.
    """

    writes: bool
    looks: bool
    counts: bool
    steps: bool
    beside: bool


@cache
def _does(func: Any) -> _Does:
    operation = operation_of(func, func._opname)
    return _Does(
        writes=func._schema.is_mutable,
        looks=torch.Tag.data_dependent_output in func.tags,
        counts=torch.Tag.dynamic_output_shape in func.tags,
        steps=operation.steps,
        beside=operation.kind in BESIDE,
    )


def _whole(made: Sequence[torch.Tensor]) -> bool:
    """Whether what was made of floating numbers is whole, or true or false."""
    return any(not one.is_floating_point() and not one.is_complex() for one in made)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
