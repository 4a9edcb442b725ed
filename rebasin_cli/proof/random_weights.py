"""Random weights that show what a network computes: no nonlinearity saturated, no unit dead.

Drawn by shape first; then, in one run, each matrix or kernel is scaled where it is first used, so that what
it gives has a standard deviation of about 1: logits of attention are as large as a softmax can tell, gates
are neither open nor shut, and depth adds up to nothing large. Tables that are added or looked up in get
entries of that size, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..graph.float64 import Uncompiled, tensors_among

PERIOD = 999_983  # a prime: no two rows of a tensor repeat each other
MATRICES = {
    "addmm": (2,),
    "mm": (0, 1),
    "bmm": (0, 1),
    "baddbmm": (2,),
    "convolution": (1,),
}
BIASES = {"addmm": 0, "baddbmm": 0, "convolution": 2}
TABLES = ("add", "add_", "sub", "embedding", "index", "index_select", "gather", "cat", "where")
ENTRY = 0.5  # standard deviation of a table's entries
STIRRED = 0.1
NEAR = 1.5  # what is no further from its size stays: each change goes through all of a weight


def draw(network: nn.Module, rng: torch.Generator) -> None:
    """New values for all floating tensors of the network, in place."""
    tensors = network.state_dict().values()
    pool = _Pool(rng, sum(tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in tensors))
    for tensor in tensors:
        if not draws(tensor):
            continue
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if tensor.ndim <= 1 and not tensor.is_complex():
            pool.positive(real)
        else:
            fan_in = math.prod(tensor.shape[1:]) if tensor.ndim != 3 else max(tensor.shape[1:])  # of experts
            fan_in = max(1, fan_in)  # a layer may have no units
            pool.normal(real, math.sqrt(2 / fan_in))


def stir(network: nn.Module, rng: torch.Generator) -> None:
    """Move each number by up to `STIRRED` of itself, in place, and those of a tensor of zeros off zero.

    What is infinite stays, as in a mask.
    """
    for _, tensor in tensors_of(network):
        real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        moved = STIRRED * (2 * torch.rand(real.shape, generator=rng, dtype=torch.float64) - 1)
        real.add_(torch.where(real.isfinite(), real, 0.0) * moved if real.any() else moved)


def strengthen(network: nn.Module, gain: float, rng: torch.Generator) -> None:
    """Matrices and kernels `gain` times as large, in place, and biases of either sign: more is decided."""
    for name, tensor in tensors_of(network):
        if tensor.ndim > 1:
            tensor.detach().mul_(gain)
        elif not tensor.is_complex() and not name.endswith("running_var"):
            tensor.detach().mul_(torch.randn(tensor.shape, generator=rng, dtype=torch.float64).sign())


def draws(tensor: torch.Tensor) -> bool:
    """Whether `draw` gives it new values."""
    return tensor.is_floating_point() or tensor.is_complex()


class _Pool:
    """As many random numbers as are asked for, out of fewer: those of a large network take long to draw."""

    def __init__(self, rng: torch.Generator, wanted: int) -> None:
        count = max(1, min(wanted, PERIOD))
        self._normal = torch.randn(count, generator=rng, dtype=torch.float64)
        # of biases and norms: positive, so that units stay alive and variances are ones
        self._positive = torch.rand(count, generator=rng, dtype=torch.float64) + 0.5
        self._at = 0

    def normal(self, into: torch.Tensor, spread: float) -> None:
        self._give(self._normal, into, spread)

    def positive(self, into: torch.Tensor) -> None:
        self._give(self._positive, into, 1.0)

    def _give(self, numbers: torch.Tensor, into: torch.Tensor, times: float) -> None:
        if not into.is_contiguous():
            flat = torch.empty(into.shape, dtype=into.dtype)
            self._give(numbers, flat, times)
            into.copy_(flat)
            return
        flat, filled = into.view(-1), 0
        while filled < len(flat):
            part = numbers[self._at : self._at + len(flat) - filled]
            if into.dtype is numbers.dtype:  # large networks: memory is gone through once
                torch.mul(part, times, out=flat[filled : filled + len(part)])
            else:
                flat[filled : filled + len(part)] = part * times
            filled += len(part)
            self._at = (self._at + len(part)) % len(numbers)


class Scaling(Uncompiled):
    """While it lasts, weights are scaled in place where they are first used.

    What a run gives is what the scaled weights give, up to rounding.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._fresh = {_memory(t) for t in network.state_dict().values() if _scales(t)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._fresh or _views(func):
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        places = MATRICES.get(name, ())
        used = [tensor for tensor in tensors_among((args, kwargs)) if self._is_fresh(tensor)]
        self._fresh -= {_memory(value) for value in used}
        if name in TABLES:
            for table in used:
                _scale(table, ENTRY * _inverse_spread(table))
        result = func(*args, **kwargs)
        alone = len(used) == 1 and any(len(args) > k and used[0] is args[k] for k in places)
        if alone and not 1 / NEAR < (by := _inverse_spread(result)) < NEAR and math.isfinite(by):
            bias = args[BIASES[name]] if name in BIASES else None
            _scale(used[0], by)
            if bias is None:
                return result * by
            bias = bias if name in ("addmm", "baddbmm") else bias.view(-1, *[1] * (result.ndim - 2))
            return (result - bias) * by + bias
        return result

    def _is_fresh(self, tensor: torch.Tensor) -> bool:
        return _scales(tensor) and _memory(tensor) in self._fresh


def _views(func: Any) -> bool:
    """Whether it only looks at what it reads in another way: that is no use of a weight."""
    reads = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
    return bool(reads) and not any(info.is_write for info in reads)


def _scales(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.ndim > 1 and tensor.numel() > 1


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _inverse_spread(tensor: torch.Tensor) -> float:
    """What a tensor is multiplied by for a standard deviation of 1; NaN where nothing makes it that."""
    spread = tensor.std().item() if tensor.numel() > 1 else 0.0
    return 1 / spread if spread > 0 else math.nan


def _scale(tensor: torch.Tensor, by: float) -> None:
    """In place; who keeps the tensor for a gradient is to see the new values.

    What an expanded tensor repeats is one number in memory, and multiplied once.
    """
    for dim, step in enumerate(tensor.stride()):
        tensor = tensor.narrow(dim, 0, 1) if step == 0 and tensor.shape[dim] > 1 else tensor
    if math.isfinite(by) and by > 0:
        with _unsafe_preserve_version_counter(tensor):
            tensor.mul_(by)


def tensors_of(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Floating tensors by name, each once however many names it has, as autograd knows them."""
    seen: set[int] = set()
    for name, tensor in _named(network):
        if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()) and id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _named(network: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    return network.state_dict(keep_vars=True).items()
