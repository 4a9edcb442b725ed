"""A network run as if it had never run: what its modules keep between calls comes and goes with the run.

Modules cache tables in evaluation mode, keep their last activation, or recompute a weight before every call.
A run copies no module, since not every module can be copied: an open file, a lock, a tensor with a
history. The attributes and what they hold are written down, and put back. Who needs a second network for
longer gets a `duplicate`.
"""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .running import evaluating

DEPTH = 3  # containers within containers that are written down
CONTAINERS = (dict, OrderedDict, list, set, deque)


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


def duplicate(network: nn.Module) -> nn.Module:
    """A second network with tensors of its own, tied as the first one's are.

    What cannot be copied, such as an open file or a lock, both have; of an activation that a module keeps, or
    a weight that a hook computes before each call, the second one has the values.
    """
    try:
        return copy.deepcopy(network)
    except Exception:  # whatever the attributes of a module raise
        return copy.deepcopy(network, dict(_as_they_are(network)))


def _as_they_are(network: nn.Module) -> Iterator[tuple[int, Any]]:
    """By its id, what a copy has in place of each attribute that cannot be copied."""
    known = {id(own): own for own in (*network.modules(), *network.parameters(), *network.buffers())}
    held = [value for module in network.modules() for value in vars(module).values()]
    seen: set[int] = set()
    while held:
        value = held.pop()
        if id(value) in known or id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) in CONTAINERS:
            held += value.values() if isinstance(value, dict) else value
        elif isinstance(value, torch.Tensor) and not value.is_leaf:
            yield id(value), value.detach().clone()
        elif not _can_be_copied(value, known):
            yield id(value), value


def _can_be_copied(value: Any, known: dict[int, Any]) -> bool:
    try:
        copy.deepcopy(value, dict(known))
    except Exception:
        return False
    return True


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
    if type(value) not in CONTAINERS or id(value) in seen or not depth:
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
