"""How one batch is run soonest on a CPU: in parts that stay in its caches, and lying channels last.

Both change outputs by rounding alone where a network takes them; whether it does, its first batch shows.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..datasets.batches import tensors_in
from ..errors import NetworkError
from ..runtime.seeds import undrawn
from .forward import call, evaluating, returned

PART = 16 << 20  # bytes of one layer's values: what is much larger leaves the processor's caches
PART_LAST = 4 << 20  # where channels lie last, nothing is copied between layers: a smaller cache will do
NARROW = 256  # channels: kernels of wider convolutions are faster as they lie
FEW = 2  # samples that show whether a network takes channels last, and what each of some more takes


@dataclass
class Known:
    """Of a network and a kind of sample. `size`: samples a part; `alike`: whether parts give what the whole
    gives; `last`: whether inputs may lie channels last. None: not seen yet."""

    size: int | None = None
    alike: bool | None = None
    last: bool | None = None


_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, Known]] = weakref.WeakKeyDictionary()


class Wrapper(nn.Module):
    """A module that runs another network, and leaves to it how."""


def plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether a module is just what its class, one of these, says: nobody looks on, or stands in for it."""
    if type(module) not in kinds or "forward" in vars(module):
        return False
    return not (module._forward_hooks or module._forward_pre_hooks)


@contextmanager
def removed(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Hooks that are gone afterwards."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _of(network: nn.Module, inputs: Tensor, output: str | int | None, *, exact: bool = False) -> Known:
    kinds = _known.setdefault(network, {})
    return kinds.setdefault((tuple(inputs.shape[1:]), inputs.dtype, output, exact), Known())


def laid(network: nn.Module, inputs: Any, output: str | int | None = None) -> Any:
    """The same inputs, lying as the network is soonest done with them.

    With narrow convolutions that is channels last, and takes up to half the time. Before, a few samples show
    in evaluation mode that the network takes it (one that asks for a `view` of its activations may not), and
    gives the same up to rounding. Not for norms in training: PyTorch then sums their statistics in float32,
    one value after the other, and of four digits the last is wrong.
    """
    return _last(inputs) if takes_last(network, inputs, output) else inputs


def takes_last(network: nn.Module, inputs: Any, output: str | int | None = None) -> bool:
    """Whether `laid` lays inputs like these channels last."""
    if not isinstance(inputs, Tensor) or inputs.ndim != 4 or inputs.device.type != "cpu":
        return False
    if isinstance(network, Wrapper | torch.jit.ScriptModule):
        return False
    known = _of(network, inputs, output)
    if known.last is None:
        with undrawn():
            known.last = _narrow(network) and _takes(network, inputs[:FEW], output)
    return known.last


def _last(inputs: Tensor) -> Tensor:
    return inputs.contiguous(memory_format=torch.channels_last)


def _narrow(network: nn.Module) -> bool:
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    return bool(convolutions) and all(
        max(module.in_channels, module.out_channels) <= NARROW for module in convolutions
    )


def _takes(network: nn.Module, few: Tensor, output: str | int | None) -> bool:
    with evaluating(network), torch.no_grad():
        try:
            return alike(*(call(network, each, output=output) for each in (few, _last(few))))
        except NetworkError:  # where it fails on both, it is told by whoever runs it
            return False


def in_parts(network: nn.Module, inputs: Any, output: str | int | None = None, *, exact: bool = False) -> Any:
    """As `returned`, for networks in evaluation mode: on a CPU `laid` well, and in parts that fit its caches.

    That takes half the time where layers are large. A few samples show how much a sample takes; the first and
    the last part of the first batch have to give what they give together, up to rounding: a network in which
    these show that it looks across samples, or that takes anything but one tensor of samples, is run on the
    whole. `exact`: inputs stay as they lie, and parts have to give the same bits.
    """
    apart = isinstance(inputs, Tensor) and inputs.ndim > 1 and inputs.device.type == "cpu"
    if not apart or isinstance(network, Wrapper | torch.jit.ScriptModule):
        return returned(network, inputs, output=output)
    known = _of(network, inputs, output, exact=exact)
    inputs = inputs if exact else laid(network, inputs, output)
    if known.size is None and len(inputs) > 2 * FEW:
        with undrawn():
            a_sample = _a_sample(network, inputs, output)
        known.size = max(FEW, int((PART_LAST if known.last else PART) / max(1.0, a_sample)))
    if known.size is None or len(inputs) <= known.size or known.alike is False:
        return returned(network, inputs, output=output)
    first, *between, last = inputs.tensor_split(-(-len(inputs) // known.size))  # none of a single sample
    if known.alike is None:
        with undrawn():  # a network that draws gives others, and is run on the whole
            ends = [call(network, part, output=output) for part in (first, last)]
            together = call(network, torch.cat([first, last]), output=output)
        known.alike = (torch.equal if exact else alike)(together, torch.cat(ends))
        if not known.alike:
            return call(network, inputs, output=output)
    else:
        ends = [call(network, part, output=output) for part in (first, last)]
    return torch.cat([ends[0], *(call(network, part, output=output) for part in between), ends[1]])


def alike(whole: Tensor, parts: Tensor) -> bool:
    """Whether two outputs of one shape differ by rounding alone, as far as float32 can tell."""
    return whole.shape == parts.shape and torch.allclose(whole, parts, rtol=1e-4, atol=1e-5, equal_nan=True)


def _a_sample(network: nn.Module, inputs: Tensor, output: str | int | None) -> float:
    """Bytes that a sample adds to the largest value of a module; 0 where few samples are not taken."""
    try:
        few, more = (_sizes(network, inputs[:count], output) for count in (FEW, 2 * FEW))
    except NetworkError:
        return 0.0
    return max((b - a for a, b in zip(few, more, strict=False)), default=0) / FEW


def _sizes(network: nn.Module, inputs: Tensor, output: str | int | None) -> list[int]:
    """Bytes of every value that a module of the network gives for a batch."""
    seen: list[int] = []

    def look(module: nn.Module, given: Any, value: Any) -> None:
        seen.extend(t.numel() * t.element_size() for t in tensors_in(value))

    with removed([module.register_forward_hook(look) for module in network.modules()]):
        call(network, inputs, output=output)
    return seen
