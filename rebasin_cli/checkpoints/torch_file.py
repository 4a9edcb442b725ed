"""One file of `torch.save` as named tensors, each read when it is asked for, as of a `SafetensorsFile`."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, UnsafeCheckpoint, UsageError
from ..registry import references
from ..registry.references import findable
from ..runtime import files
from ..runtime.memory import check_memory
from ..types import Tensors
from . import envelopes, pieces
from .around import around
from .containers import Unread, UnreadTensor, holding, looked_into
from .envelopes import ENVELOPES
from .inert import Reader, TooMuch
from .pickled import KNOWN
from .safetensors_format import COPY_AGAIN
from .storages import LEGACY, NESTED, Bounded, InStream, Mapped, check_zip
from .stored import Piece, StoredFile
from .tensors import odd

ZIP = b"PK\x03\x04"
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


def _found(path: Path, key: str | None, unsafe_load: bool) -> tuple[Loaded, envelopes.Found]:
    """What is saved and the weights in it: without the file's code first, also where that may be run."""
    loaded = None
    try:
        loaded = load(path)
        return loaded, _weights(path, loaded, key)
    except (CheckpointError, UsageError):
        if not unsafe_load or (loaded and not loaded.wanted):
            raise
    loaded = load_by_its_code(path)
    return loaded, _weights(path, loaded, key)


def _weights(path: Path, loaded: Loaded, key: str | None) -> envelopes.Found:
    pieces.check_content(path, loaded.saved)
    try:
        found = envelopes.find(loaded.saved, key=key, name=str(path))
    except CheckpointError:
        if key is None and (hidden := [str(one) for one in loaded.unread if one.tensors]):
            raise unsafe(path, loaded, hidden) from None
        raise
    _check_unread(path, found, loaded, key)
    _check_storage(found.tensors, path)
    return found


def _check_unread(path: Path, found: envelopes.Found, loaded: Loaded, key: str | None) -> None:
    """Refuse weights that only code of the file can tell: of other classes, or in objects of its own.

    Raises UnsafeCheckpoint.
    """
    strange = {name: tensor for name, tensor in found.tensors.items() if isinstance(tensor, UnreadTensor)}
    if problems := [f"{name}  {tensor.what}" for name, tensor in strange.items() if tensor.needs_code]:
        raise unsafe(path, loaded, problems)
    first = found.envelope.partition(".")[0]
    better = ENVELOPES[: ENVELOPES.index(first) if first in ENVELOPES else None]
    if key is None and (
        hidden := [one for one in loaded.unread if one.tensors and one.path[:1] and one.path[0] in better]
    ):
        raise unsafe(path, loaded, [str(one) for one in hidden])


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


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins so is a pickle of protocol 2 to 5."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


@dataclass(frozen=True)
class Loaded:
    """What was saved, and where in the file its storages lie: {address: (first byte, bytes)}.

    Where `places` is there, the tensors' own memory is the mapped file, which is never to be looked at:
    `piece` says what to read instead. It is None where everything was read into memory. `unread`: what in it
    could not be read without its code; `wanted`: the names of all code that it asks for.
    """

    saved: Any
    places: dict[int, tuple[int, int]] | None = None
    unread: tuple[Unread, ...] = ()
    wanted: tuple[str, ...] = ()

    def piece(self, tensor: Tensor) -> Piece | None:
        """Where a tensor's values lie in the file; None where its own are in memory, or are none."""
        plain = (
            not tensor.is_nested
            and tensor.layout is torch.strided
            and not tensor.is_quantized
            and tensor.device.type == "cpu"
        )
        if self.places is None or not plain or tensor.is_conj() or tensor.is_neg():
            return None
        place = self.places.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else (0, 0)
        if place is None:
            return None
        start = place[0] + int(tensor.storage_offset()) * tensor.dtype.itemsize
        stride = None if tensor.is_contiguous() else tuple(tensor.stride())
        return Piece(start, tensor.dtype, tuple(tensor.shape), stride)


def load(path: Path) -> Loaded:
    """What was saved into this file, on the CPU; none of its code is run.

    Raises UnsafeCheckpoint where nothing can be told without that code, else CheckpointError; ResourceError.
    """
    size = os.path.getsize(path)
    with files.opened(path) as file:
        head = file.read(len(LEGACY))
        storages: Mapped | InStream | None = None
        whole = size
        if head.startswith(ZIP):
            storages = Mapped(path, *check_zip(path))
            whole = storages.pickled
        elif head == LEGACY:
            storages = InStream(size)
        stored = storages.stored if storages else None
        check_memory(f"{path} is read whole, which takes", whole)
        reader = Reader(KNOWN | NESTED, stored, size=whole)
        file.seek(0)
        try:
            saved = (
                storages.read(Bounded(file, size), reader) if storages else reader.load(Bounded(file, size))
            )
            saved, unread = looked_into(saved, reader)
        except TooMuch as cause:
            raise CheckpointError(
                f"{path} was not read: {cause}",
                hint="Save plain weights where it was made: torch.save(model.state_dict(), 'weights.pt')",
            ) from cause
        except DAMAGED as cause:
            what = "is damaged or cut off" if storages else "is no checkpoint, or a damaged one"
            raise CheckpointError(f"{path} {what}: {_first_line(cause)}", hint=COPY_AGAIN) from cause
    loaded = Loaded(saved, storages.places if storages else None, unread, tuple(sorted(reader.unknown)))
    if reader.unknown and not _shows_tensors(saved):
        raise unsafe(path, loaded)
    if storages is None and not _shows_tensors(saved):
        raise CheckpointError(
            f"{path} is no checkpoint: a pickle that torch.save did not write, without tensors"
        )
    return loaded


# What a damaged file brings Python and PyTorch to say. MemoryError and OSError are none of it.
DAMAGED = (
    *(UnpicklingError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError),
    *(EOFError, struct.error),
)


_IMPORTABLE = (
    "The code that it was saved with must be importable: run from its folder, or save plain weights there."
)
_MAIN = "Its classes stand in the very script that saved it and cannot be imported: save plain weights there."


def _shows_tensors(saved: Any) -> bool:
    """Whether dictionaries, lists and tuples lead to a tensor."""
    return isinstance(saved, Tensor) or id(saved) in holding(saved)


def load_by_its_code(path: Path) -> Loaded:
    """The same, unpickled: this runs the code of the file's choice. What is saved from here is importable."""
    references.check_unpickling(path)
    with files.opened(path) as file, warnings.catch_warnings(), findable(Path()):
        warnings.simplefilter("ignore")  # about deprecated dtypes and storages: nothing the reader can act on
        head = file.read(len(LEGACY))
        file.seek(0)
        by_torch = head.startswith(ZIP) or head == LEGACY
        try:
            saved = (
                torch.load(file, map_location="cpu", weights_only=False) if by_torch else pickle.load(file)
            )
        except Exception as cause:
            raise CheckpointError(
                f"{path} was unpickled, and that failed: {type(cause).__name__}: {_first_line(cause)}",
                hint=_MAIN if "__main__" in str(cause) else _IMPORTABLE,
            ) from cause
    if not isinstance(saved, Mapping | nn.Module) and hasattr(saved, "__dict__"):
        saved = vars(saved)
    return Loaded(saved)


def unsafe(path: Path, loaded: Loaded, problems: Sequence[str] = ()) -> UnsafeCheckpoint:
    """What it wants, and no command to paste: that would run the code that is warned of."""
    whole = any(name.startswith("torch.nn.modules.") for name in loaded.wanted)
    what = "a whole pickled network, not plain tensors" if whole else "not plain tensors"
    weights = "model.state_dict()" if whole else "{'state_dict': model.state_dict()}"
    return UnsafeCheckpoint(
        f"{path} is {what}: reading it would run code, so it was not read",
        problems=[*problems, *(f"wants to import {name}" for name in loaded.wanted)],
        hint=f"Ask for plain weights, saved where it was made with torch.save({weights}, 'weights.pt'). "
        "--unsafe-load runs the code: only for a file from a source that you would run a program from.",
    )


def _first_line(cause: BaseException) -> str:
    """What torch says happened, without its advice to load unsafely."""
    text = str(cause)
    if "WeightsUnpickler error: " in text:
        text = text.rpartition("WeightsUnpickler error: ")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(cause).__name__)[:200]
