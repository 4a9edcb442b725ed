"""A network run as if it had never run: what its modules keep between calls comes and goes with the run.

Modules cache tables in evaluation mode, keep their last activation, or recompute a weight before every call.
Nothing here copies a module, since not every module can be copied: an open file, a lock, a tensor with a
history. The attributes and what they hold are written down, and put back.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .running import evaluating

DEPTH = 3  # containers within containers that are written down


@contextlib.contextmanager
def fresh(network: nn.Module) -> Iterator[Callable[[], None]]:
    """Evaluation mode without what earlier calls left behind; afterwards all is as it was.

    Gives what makes it fresh again, between two runs. Caches that a module drops when it goes to training,
    as it should, are dropped; one that it keeps even then is not known to be one.
    """
    before = list(_noted(network))
    with evaluating(network):
        with contextlib.suppress(Exception):  # some graphs know no training
            network.train()
        network.eval()
        start = list(_noted(network))
        try:
            yield lambda: _put_back(start)
        finally:
            _put_back(before)


@contextlib.contextmanager
def own_state(network: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Parameters and buffers are copies, in `dtype` where they have a floating point; afterwards as before.

    Tensors that share memory still do.
    """
    kept: dict[int, tuple[torch.Tensor, torch.Tensor, bool]] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        kept.setdefault(id(tensor), (tensor, tensor.data, tensor.requires_grad))
    storages: dict[Any, torch.Tensor] = {}
    try:
        for tensor, data, _ in kept.values():
            tensor.data = _copied(data, _precision(data.dtype, dtype), storages)
        yield
    finally:
        for tensor, data, learns in kept.values():
            tensor.data = data
            if tensor.requires_grad != learns:
                tensor.requires_grad_(learns)


def _precision(own: torch.dtype, wanted: torch.dtype) -> torch.dtype:
    if own.is_complex:
        return torch.complex128 if wanted is torch.float64 else torch.complex64
    return wanted if own.is_floating_point else own


def _copied(data: torch.Tensor, dtype: torch.dtype, storages: dict[Any, torch.Tensor]) -> torch.Tensor:
    if data.layout is not torch.strided or not data.numel():
        return data.to(dtype, copy=True)
    storage = data.untyped_storage()
    key = storage.data_ptr(), data.dtype
    if key not in storages:
        flat = torch.empty(0, dtype=data.dtype, device=data.device).set_(storage)
        storages[key] = flat.to(dtype, copy=True)
    return storages[key].as_strided(data.shape, data.stride(), data.storage_offset())


def _noted(network: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Every module's attributes, and the plain containers among them, each with what it holds."""
    seen: set[int] = set()
    for module in network.modules():
        own = vars(module)
        yield own, dict(own)
        for value in own.values():
            yield from _held(value, seen, DEPTH)


def _held(value: Any, seen: set[int], depth: int) -> Iterator[tuple[Any, Any]]:
    if type(value) not in (dict, OrderedDict, list, set, deque) or id(value) in seen or not depth:
        return
    seen.add(id(value))
    yield value, value.copy()
    for inner in list(value.values()) if isinstance(value, dict) else list(value):
        yield from _held(inner, seen, depth - 1)


def _put_back(noted: list[tuple[Any, Any]]) -> None:
    for container, held in noted:
        if _same(container, held):
            continue
        if isinstance(container, dict):  # key by key: a module is never seen without its attributes
            for key in [key for key in container if key not in held]:
                del container[key]
            container.update(held)
        else:
            container.clear()
            (container.update if isinstance(container, set) else container.extend)(held)


def _same(container: Any, held: Any) -> bool:
    """Whether the very same things are in it; `==` would compare tensors."""
    if len(container) != len(held):
        return False
    if isinstance(container, set):
        return container == held
    if isinstance(container, dict):
        return all(a is b and container[a] is held[b] for a, b in zip(container, held, strict=True))
    return all(a is b for a, b in zip(container, held, strict=True))
