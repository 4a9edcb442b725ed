"""A network run as if it had never run: what its modules keep between calls comes and goes with the run.

Modules cache tables in evaluation mode, keep their last activation, or recompute a weight before every call.
A run copies no module, since not every module can be copied: an open file, a lock, a tensor with a
history. The attributes and what they hold are written down, and put back. Who needs a second network for
longer gets a `duplicate`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import caches
from .caches import CONTAINERS, noted, put_back
from .forward import evaluating, fed, forward


@contextlib.contextmanager
def fresh(
    network: nn.Module, inputs: Any, keywords: Mapping[str, Any] | None = None
) -> Iterator[Callable[[], None]]:
    """Evaluation mode without what earlier calls left behind; afterwards all is as it was.

    Gives what makes it fresh again, between two runs. Caches that a module drops when it goes to training,
    as it should, are dropped; so are those that a run on `inputs`, one batch, fills again (see `caches`).
    """
    before = list(noted(network))
    with evaluating(network):
        with contextlib.suppress(Exception):  # some graphs know no training
            network.train()
        network.eval()
        with buffers_kept(network):
            caches.empty(network, lambda: _run(network, inputs, keywords or {}))
        start = list(noted(network))
        try:
            yield lambda: put_back(start)
        finally:
            put_back(before)


def _run(network: nn.Module, inputs: Any, keywords: Mapping[str, Any]) -> None:
    if keywords:
        network(*inputs, **keywords)
    else:
        forward(network, fed(network, inputs, "cpu", quiet=True))


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
def buffers_kept(network: nn.Module) -> Iterator[None]:
    """What a run writes into buffers is taken back."""
    with torch.no_grad():
        kept = [(buffer, buffer._version, buffer.clone()) for buffer in network.buffers()]
    try:
        yield
    finally:
        for buffer, version, values in kept:
            if buffer._version != version:
                buffer.detach().copy_(values)


@contextlib.contextmanager
def own_state(network: nn.Module, dtype: torch.dtype) -> Iterator[Callable[[], None]]:
    """Parameters and buffers are copies, in `dtype` where they have a floating point; afterwards as before.

    Tensors that share memory still do. Gives what makes the copies' values those of the network again.
    """
    kept: dict[int, tuple[torch.Tensor, torch.Tensor, bool]] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        kept.setdefault(id(tensor), (tensor, tensor.data, tensor.requires_grad))
    storages: dict[Any, torch.Tensor] = {}
    try:
        for tensor, data, _ in kept.values():
            tensor.data = _copied(data, _precision(data.dtype, dtype), storages)
        yield lambda: _given_back(kept.values())
    finally:
        for tensor, data, learns in kept.values():
            tensor.data = data
            if tensor.requires_grad != learns:
                tensor.requires_grad_(learns)


def _given_back(kept: Iterable[tuple[torch.Tensor, torch.Tensor, bool]]) -> None:
    for tensor, data, _ in kept:
        tensor.detach().copy_(data)


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
