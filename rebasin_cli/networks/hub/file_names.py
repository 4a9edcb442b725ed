"""A network whose tensors have the names, and the pieces, that its files have.

transformers writes some networks as earlier versions named them, and experts one by one that it keeps in one
tensor. A spec speaks of files. So the modules of the network stand in another tree here, under the names of
files; a tensor that a file has in pieces is put together of them in every run.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...errors import NetworkError
from ...types import Shapes

REST = "_rest"  # of modules without a tensor in the file
# Masks, and tables of positions, that files of earlier versions have, and no class reads.
UNREAD = (
    r"(^|\.)(attn|attention|crossattention)\.(bias|masked_bias)$",
    r"(^|\.)rotary_emb\.inv_freq$",
    r"(^|\.)position_ids$",
    r"(^|\.)EncDecAttention\.relative_attention_bias\.weight$",
)


@dataclass(frozen=True)
class Piece:
    """A box of one tensor of the network, which a file holds as a tensor of its own.

    `start` and `size` have an entry for each axis of the network's tensor `of`; `axes` says which of these
    each axis of the file's tensor is, -1 for one with a single entry.
    """

    of: str
    start: tuple[int, ...]
    size: tuple[int, ...]
    axes: tuple[int, ...]

    def box(self, tensor: torch.Tensor) -> torch.Tensor:
        """The file's tensor with the axes of the network's, of `size`."""
        order = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return tensor.permute(order).reshape(self.size)


class Refiled(nn.Module):
    """The modules of `network` in the tree of its files; `pieces` are put together in every run.

    `written` has what the package would write now by the file's names, `unread` what no class reads.
    """

    network: nn.Module
    written: dict[str, str]
    unread: list[str]

    def __init__(self, network: nn.Module, names: Mapping[str, str], pieces: Mapping[str, Piece]) -> None:
        super().__init__()
        object.__setattr__(self, "network", network)  # no submodule: its names are those that are left
        self.pieces = dict(pieces)
        state = network.state_dict(keep_vars=True)
        self._place(network, "", {name: tensor for name, tensor in state.items()}, names)
        rest = (
            module for module in network.modules() if not module.state_dict() and not [*module.children()]
        )
        self.add_module(REST, nn.ModuleList(rest))
        for name, piece in pieces.items():
            part = state[piece.of].detach()[_slices(piece)]
            axes = [axis for axis in piece.axes if axis >= 0]
            kept = part.permute(*axes, *(k for k in range(part.dim()) if k not in axes))
            shape = [1 if axis < 0 else piece.size[axis] for axis in piece.axes]
            self._hold(name, nn.Parameter(kept.reshape(shape).clone(), state[piece.of].requires_grad))

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """What the network returns."""
        if not self.pieces:
            return self.network(*args, **kwargs)
        boxes: dict[str, list[tuple[Piece, torch.Tensor]]] = {}
        for name, piece in self.pieces.items():
            boxes.setdefault(piece.of, []).append((piece, piece.box(_at(self, name))))
        whole = {name: together(parts) for name, parts in boxes.items()}
        return torch.func.functional_call(self.network, whole, args, kwargs)

    def train(self, mode: bool = True) -> Refiled:
        for module in self.network.modules():
            module.training = mode
        super().train(mode)
        return self

    def _place(self, module: nn.Module, path: str, own: dict[str, Any], names: Mapping[str, str]) -> None:
        """Put a module where the file has all its tensors; else what is in it, one by one."""
        if not own:
            return
        new = {names.get(f"{path}{name}", "").removesuffix(name) for name in own}
        if path and len(new) == 1 and (place := new.pop()).endswith("."):
            there = {name for name in names.values() if name.startswith(place)}
            if there == {f"{place}{name}" for name in own}:
                self._hold(place[:-1], module)
                return
        for name, child in module.named_children():
            its = {n.removeprefix(f"{name}."): t for n, t in own.items() if n.startswith(f"{name}.")}
            self._place(child, f"{path}{name}.", its, names)
        for name in [name for name in own if "." not in name]:
            if (file := names.get(f"{path}{name}")) is not None:
                value = vars(module)["_parameters"].get(name, vars(module)["_buffers"].get(name))
                self._hold(file, value)
                shape = tuple(value.shape)
                self.pieces[file] = Piece(f"{path}{name}", (0,) * len(shape), shape, (*range(len(shape)),))

    def _hold(self, name: str, what: nn.Module | torch.Tensor) -> None:
        *above, last = name.split(".")
        place: nn.Module = self
        for part in above:
            if part not in dict(place.named_children()):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        if isinstance(what, nn.Module):
            place.add_module(last, what)
        elif isinstance(what, nn.Parameter):
            place.register_parameter(last, what)
        else:
            place.register_buffer(last, what)


def under_names_of_files(network: nn.Module, there: Shapes | None = None) -> nn.Module:
    """The network under the names that `save_pretrained` writes; itself where it has them.

    A file with the tensors `there` may be of an earlier version, or of the network within this one: names
    that the package reads as others stand in their place. What no version reads any more is a buffer. Raises
    NetworkError where files hold something else than pieces of its tensors.
    """
    state = network.state_dict(keep_vars=True)
    flat = {name: torch.empty(tensor.shape, device="meta") for name, tensor in state.items()}
    known = {id(tensor): name for name, tensor in flat.items()}
    try:
        loading: Any = importlib.import_module("transformers.core_model_loading")
        written = loading.revert_weight_conversion(network, dict(flat))
    except (ImportError, AttributeError):  # earlier versions write what they have
        loading, written = None, flat
    names = {known[id(tensor)]: name for name, tensor in written.items() if id(tensor) in known}
    unread: list[str] = []
    if there is not None and loading is not None and not there.keys() <= written.keys():
        for name, own in _read_as(network, loading, [n for n in there if n not in written]).items():
            if own in names:
                names[own] = name
            elif any(re.search(pattern, name) for pattern in UNREAD):
                unread.append(name)
    elif all(names.get(name) == name for name in state):
        return network
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items() if name not in names}
    pieces = _pieces(network, loading, flat, shapes)
    kind = type(type(network).__name__, (Refiled,), {"forward": _forward(network)})
    found: Any = kind(network, names, pieces)
    found.written = {names[own]: name for name, own in ((n, known.get(id(t), "")) for n, t in written.items())
                     if own in names}  # fmt: skip
    found.unread = unread
    for name in unread:
        found._hold(name, torch.zeros((there or {})[name]))
    if found.state_dict().keys() != {*names.values(), *pieces, *unread}:
        raise NetworkError(f"{type(network).__name__} cannot be put under the names of its files")
    result: nn.Module = found
    return result


def _read_as(network: Any, loading: Any, names: Sequence[str]) -> dict[str, str]:
    """What the package calls these tensors of a file, as it would when it loads them."""
    conversions = importlib.import_module("transformers.conversion_mapping")
    known = conversions.get_model_conversion_mapping(network)
    converters = [one for one in known if isinstance(one, loading.WeightConverter)]
    renamings = [one for one in known if not isinstance(one, loading.WeightConverter)]
    state, prefix = network.state_dict(), network.base_model_prefix
    return {name: loading.rename_source_key(name, renamings, converters, prefix, state)[0] for name in names}


def _pieces(
    network: nn.Module, loading: Any, flat: Any, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Piece]:
    """What files have of these tensors, found by numbers in place of their values."""
    if not shapes:
        return {}
    numbered, first = dict(flat), 0
    ranges: list[tuple[int, str]] = []
    for name, shape in shapes.items():
        count = math.prod(shape)
        numbered[name] = torch.arange(first, first + count, device="cpu").view(*shape)
        ranges.append((first, name))
        first += count
    found: dict[str, Piece] = {}
    for name, values in loading.revert_weight_conversion(network, numbered).items():
        if values.device.type != "meta":
            start, of = max(one for one in ranges if one[0] <= int(values.flatten()[0]))
            found[name] = _piece(name, values - start, of, tuple(shapes[of]))
    for of, shape in shapes.items():
        if sum(math.prod(piece.size) for piece in found.values() if piece.of == of) != math.prod(shape):
            raise NetworkError(f"{of} is not in the file as a whole")
    return found


def _piece(name: str, values: torch.Tensor, of: str, shape: tuple[int, ...]) -> Piece:
    """Which box of a tensor these numbers are, its entries counted from 0. Raises NetworkError for no box."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    axes = []
    for axis, count in enumerate(values.shape):
        step = int(values.select(axis, 1).flatten()[0] - values.flatten()[0]) if count > 1 else 0
        axes.append(strides.index(step) if step in strides else -1)
    at, start = int(values.flatten()[0]), []
    for stride in strides:
        start.append(at // stride)
        at %= stride
    size = tuple(values.shape[axes.index(axis)] if axis in axes else 1 for axis in range(len(shape)))
    piece = Piece(of, tuple(start), size, tuple(axes))
    whole = torch.arange(math.prod(shape), device="cpu").view(shape)
    if math.prod(size) != values.numel() or not torch.equal(whole[_slices(piece)], piece.box(values)):
        raise NetworkError(f"{name} of a file is no piece of {of}")
    return piece


def _slices(piece: Piece) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in zip(piece.start, piece.size, strict=True))


def together(boxes: Sequence[tuple[Piece, torch.Tensor]]) -> torch.Tensor:
    """The tensor that is made of these boxes, by cuts that go through no box."""
    if len(boxes) == 1:
        return boxes[0][1]
    for axis in range(len(boxes[0][0].size)):
        groups: list[list[tuple[Piece, torch.Tensor]]] = []
        end = -1
        for box in sorted(boxes, key=lambda one: one[0].start[axis]):
            if box[0].start[axis] >= end:
                groups.append([])
            groups[-1].append(box)
            end = max(end, box[0].start[axis] + box[0].size[axis])
        if len(groups) > 1:
            return torch.cat([together(group) for group in groups], dim=axis)
    raise NetworkError("the pieces of a tensor cannot be put together")


def _at(module: nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    found: torch.Tensor = getattr(module.get_submodule(path), last)
    return found


def _forward(network: nn.Module) -> Any:
    """`forward` with the arguments of the network's own."""

    @functools.wraps(type(network).forward)
    def forward(self: Refiled, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    return forward
