"""One file of `torch.save` as named tensors, each read when it is asked for, as of a `SafetensorsFile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError, UsageError
from ..types import Tensors
from . import envelopes, pieces, torch_format
from .around import around
from .choosing import ENVELOPES
from .opening import UnreadTensor
from .stored import Piece, StoredFile
from .tensors import odd

MAX_REPEATED = 1 << 30  # bytes that the tensors of a file may claim beyond those stored


@dataclass(frozen=True)
class TorchEntry:
    dtype: torch.dtype
    shape: tuple[int, ...]


class TorchFile:
    """The weights of one file: `entries` by plain names, and `found`, which says where they were in it.

    Opening reads the pickle; values lie where they are, but for files of before PyTorch 1.6. Raises
    CheckpointError, UnsafeCheckpoint, and UsageError for a `key` that is not there.
    """

    metadata: Mapping[str, str] = {}  # such a file has none

    def __init__(self, path: Path, key: str | None = None, unsafe_load: bool = False):
        self.file = StoredFile(path)
        loaded, found = _found(path, key, unsafe_load)
        tensors = {name: tensor.detach() for name, tensor in found.tensors.items()}
        self.unread = tuple(map(str, loaded.unread))
        named = {".".join(one.path) for one in loaded.unread}  # and need not be told twice
        skipped = {where: what for where, what in found.skipped.items() if where not in named}
        self.around = around(loaded.saved, found.places, found.skipped, found.alternatives)
        self.found = replace(found, tensors={}, skipped=skipped)  # tensors may be of a file that is mapped
        self.entries = {name: TorchEntry(each.dtype, tuple(each.shape)) for name, each in tensors.items()}
        self.tied = _tied(tensors)
        self._kept: Mapping[str, Piece | Tensor] = {
            name: loaded.piece(tensor) or tensor for name, tensor in tensors.items()
        }
        self._last: tuple[str, Tensor] | None = None  # does not lie row by row, and is asked for in parts

    def tensor(self, name: str) -> Tensor:
        kept = self._kept[name]
        return kept if isinstance(kept, Tensor) else self.file.tensor(kept)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        kept = self._kept[name]
        if isinstance(kept, Piece) and kept.stride is None:
            return self.file.tensor(kept.rows(start, stop))
        last = self._last
        if last is None or last[0] != name:
            self._last = None
            last = self._last = name, self.tensor(name)
        return last[1][start:stop]


class Shard:
    """A torch file that is one of several: its tensors by the names in it, as an index has them."""

    metadata: Mapping[str, str] = {}

    def __init__(self, path: Path, unsafe_load: bool = False):
        self.file = TorchFile(path, unsafe_load=unsafe_load)
        self._plain = {str(keys[-1]): name for name, keys in self.file.found.places.items()}
        if self.file.found.parts:
            self._plain = {name: name for name in self.file.entries}
        self.entries = {stored: self.file.entries[name] for stored, name in self._plain.items()}
        stored = {name: stored for stored, name in self._plain.items()}
        self.tied = tuple(tuple(stored[name] for name in group) for group in self.file.tied)

    def tensor(self, name: str) -> Tensor:
        return self.file.tensor(self._plain[name])

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self.file.rows(self._plain[name], start, stop)


def _found(path: Path, key: str | None, unsafe_load: bool) -> tuple[torch_format.Loaded, envelopes.Found]:
    """What is saved and the weights in it: without the file's code first, also where that may be run."""
    loaded = None
    try:
        loaded = torch_format.load(path)
        return loaded, _weights(path, loaded, key)
    except (CheckpointError, UsageError):
        if not unsafe_load or (loaded and not loaded.wanted):
            raise
    loaded = torch_format.load_by_its_code(path)
    return loaded, _weights(path, loaded, key)


def _weights(path: Path, loaded: torch_format.Loaded, key: str | None) -> envelopes.Found:
    pieces.check_content(path, loaded.saved)
    try:
        found = envelopes.find(loaded.saved, key=key, name=str(path))
    except CheckpointError:
        if key is None and (hidden := [str(one) for one in loaded.unread if one.tensors]):
            raise torch_format.unsafe(path, loaded, hidden) from None
        raise
    _check_unread(path, found, loaded, key)
    _check_storage(found.tensors, path)
    return found


def _check_unread(path: Path, found: envelopes.Found, loaded: torch_format.Loaded, key: str | None) -> None:
    """Refuse weights that only code of the file can tell: of other classes, or in objects of its own.

    Raises UnsafeCheckpoint.
    """
    strange = {name: tensor for name, tensor in found.tensors.items() if isinstance(tensor, UnreadTensor)}
    if problems := [f"{name}  {tensor.what}" for name, tensor in strange.items() if tensor.needs_code]:
        raise torch_format.unsafe(path, loaded, problems)
    first = found.envelope.partition(".")[0]
    better = ENVELOPES[: ENVELOPES.index(first) if first in ENVELOPES else None]
    if key is None and (
        hidden := [one for one in loaded.unread if one.tensors and one.path[:1] and one.path[0] in better]
    ):
        raise torch_format.unsafe(path, loaded, [str(one) for one in hidden])


def _check_storage(tensors: Tensors, path: Path) -> None:
    """Refuse tensors without plain values, and those that repeat few stored values without end."""
    problems, repeated = [], 0
    for name, tensor in tensors.items():
        if why := tensor.what if isinstance(tensor, UnreadTensor) else odd(tensor):
            problems.append(f"{name}  {why}")
            continue
        claimed = tensor.numel() * tensor.element_size()  # a stride of 0 repeats values, within reason
        repeated += max(0, claimed - tensor.untyped_storage().nbytes())
        if repeated > MAX_REPEATED:
            problems.append(f"{name}  claims {claimed:,} bytes, far more than are stored")
    if problems:
        raise CheckpointError(f"{path} cannot be used", problems=problems)


def _tied(tensors: Tensors) -> tuple[tuple[str, ...], ...]:
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():  # empty tensors all lie at address 0
            where = (tensor.untyped_storage().data_ptr(), tensor.storage_offset())
            groups.setdefault((*where, tensor.shape, tensor.stride(), tensor.dtype), []).append(name)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
