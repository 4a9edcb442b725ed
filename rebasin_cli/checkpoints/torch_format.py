"""Files written by `torch.save` and by `pickle`, read without running the code that they may hold.

`load` returns whatever was saved, with all that needs its own code left out and named (`inert.py`); finding
the weights in it is `envelopes.py`'s work. Of files in the zip format (PyTorch 1.6 and later) the values are
read when they are asked for; older ones are read whole.
"""

from __future__ import annotations

import os
import pickle
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, UnsafeCheckpoint
from ..registry import allowed
from ..registry.references import findable
from ..runtime.memory import check_memory
from .inert import Reader, TooMuch
from .opening import Unread, holding, looked_into
from .rebuilding import KNOWN
from .safetensors_format import COPY_AGAIN
from .storages import LEGACY, NESTED, Bounded, InStream, Mapped, check_zip
from .stored import Piece

ZIP = b"PK\x03\x04"


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
    with open(path, "rb") as file:
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
        except _DAMAGED as cause:
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
_DAMAGED = (
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
    allowed.check_unpickling(path)
    with open(path, "rb") as file, warnings.catch_warnings(), findable(Path()):
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
