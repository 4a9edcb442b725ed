"""What is drawn at random replaced by its mean: it tells units apart for one step only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ..errors import NotProven
from ..graph.float64 import Uncompiled, tensors_among
from ..graph.operations import operation_of

DRAWN = {"rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0}  # operations, and their mean
DRAWN |= {"uniform_": 0.5, "normal_": 0.0, "bernoulli_": 0.5, "bernoulli": 0.5}


class Means(Uncompiled):
    """While it lasts, numbers that are drawn are their mean; those of the operations `only`."""

    def __init__(self, only: Collection[str] = DRAWN.keys()) -> None:
        super().__init__()
        self._only = only

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result, name = func(*args, **(kwargs or {})), func._opname
        if name in self._only and isinstance(result, Tensor) and result.is_floating_point():
            mean: Any = DRAWN[name]
            if name == "uniform_" and len(args) > 2:
                mean = (args[1] + args[2]) / 2
            elif name in ("normal_", "bernoulli_", "bernoulli") and len(args) > 1:
                mean = args[1]
            elif name == "bernoulli":
                mean = args[0]
            result.copy_(mean if isinstance(mean, Tensor) else torch.full_like(result, mean))
        return result


DROPPING = "bernoulli_"  # the operation that dropout is made of
_SCALES = frozenset({"div_", "mul_"})  # what dropout does to what it drew
WHY = "chance drops entries, and whether several layers are to share the same chance shows in no mean"
_ENTRY_BY_ENTRY = frozenset({"activation", "plain", "scaling", "same", "cast", "dropout"})
HINT = "Let dropout act on the values of one layer each; or drop nothing in evaluation: network.eval()"


class Dropping(Means):
    """The same of what dropout draws, once for each layer: then orders of its units change nothing.

    What is drawn may only be multiplied with one tensor, whose entries differ along each axis. A mask of its
    own, as of equal entries, may be that of several layers, whose units have to have one order then: where it
    is its mean nobody sees that. So may be what tells which entries it left (`left > 0`). Raises NotProven.
    """

    def __init__(self) -> None:
        super().__init__([DROPPING])
        self._drawn: dict[int, Tensor] = {}  # by their memory, kept so that it is nobody else's
        self._used: set[int] = set()
        self._left: dict[int, Tensor] = {}  # what dropout left of each layer, and what is that but moved

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func._opname == DROPPING:
            self._drawn[_memory(args[0])] = args[0]
            return result
        for tensor in tensors_among((args, kwargs)):
            at = _memory(tensor)
            if at not in self._drawn or (func._opname in _SCALES and tensor is args[0]):
                continue
            others = [other for other in args if isinstance(other, Tensor) and _memory(other) != at]
            if func._opname != "mul" or at in self._used or not others or not _differs(others[0], tensor):
                raise NotProven(f"the network is not proven: {WHY}", hint=HINT)
            self._used.add(at)
            self._left[_memory(result)] = result
        self._follow(func, args, result)
        return result

    def _follow(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Raise NotProven where which entries were dropped is made numbers of."""
        if not any(_memory(tensor) in self._left for tensor in tensors_among(args)):
            return
        does = operation_of(func, func._opname)
        by_entry = does.kind in _ENTRY_BY_ENTRY
        for made in tensors_among(result):
            if by_entry and (does.steps or does.distance or not made.is_floating_point()):
                raise NotProven(f"the network is not proven: {WHY}", hint=HINT)
            if by_entry or does.moves:
                self._left[_memory(made)] = made


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def _differs(values: Tensor, drawn: Tensor) -> bool:
    """Whether values differ along each axis that is drawn, but for the first of several, of samples."""
    values = values.expand(torch.broadcast_shapes(values.shape, drawn.shape))
    axes = range(int(values.ndim > 1), values.ndim)
    return not any(
        values.shape[k] > 1 and bool((values == values.narrow(k, 0, 1)).all())
        for k in axes
        if drawn.ndim == values.ndim and drawn.shape[k] > 1
    )
