"""Files written by `torch.save`, read without running the code that a pickle may hold.

`load` returns whatever was saved; finding the weights in it is `envelopes.py`'s work. Of files in the zip
format (PyTorch 1.6 and later) the values are read when they are asked for; older ones are read whole.
"""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..errors import CheckpointError, UnsafeCheckpoint
from .safetensors_format import COPY_AGAIN
from .stored import Piece

Records = dict[int, int]  # where the values of a storage begin in the file: how many bytes they are

ZIP = b"PK\x03\x04"
LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number, pickled first until PyTorch 1.6

# What torch.save writes for plain tensors: not worth naming among the imports of an unsafe file.
_PLAIN = re.compile(
    r"torch\.(_utils\._rebuild_\w+|\w*Storage|storage\.\w*Storage|Size|device|Tensor|nn\.parameter\.Parameter"
    r"|_tensor\._rebuild_\w+|serialization\._get_layout|(b?float|u?int|q?u?int|complex|bool|half|double|long)\w*)|collections\.(OrderedDict|Counter)"
)


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins so is a pickle of protocol 2 to 5."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


@dataclass(frozen=True)
class Loaded:
    """What was saved, and where in the file its storages lie: {address: (first byte, bytes)}.

    Where `places` is there, the tensors' own memory is the mapped file, which is never to be looked at:
    `piece` says what to read instead. It is None where everything was read into memory.
    """

    saved: Any
    places: dict[int, tuple[int, int]] | None = None

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
        start = place[0] + tensor.storage_offset() * tensor.dtype.itemsize
        return Piece(start, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))


def load(path: Path, *, unsafe: bool) -> Loaded:
    """What `torch.save` put into this file, on the CPU. Even with `unsafe`, the safe way is tried first.

    Raises UnsafeCheckpoint where reading would run code and `unsafe` is false, else CheckpointError.
    """
    with open(path, "rb") as file:
        head = file.read(len(LEGACY))
    zipped = head.startswith(ZIP)
    records = _check_zip(path) if zipped else None
    if not zipped and head != LEGACY:
        return Loaded(_load_plain_pickle(path, unsafe))
    try:
        return _torch_load(path, records, weights_only=True)
    except Exception as cause:  # torch raises nearly everything for a damaged file
        try:
            imports = wanted_imports(path, zipped)
        except Exception:  # zipfile, as much: damaged where the pickle itself lies
            imports = []
        if unsafe and (imports or isinstance(cause, pickle.UnpicklingError)):
            return _running_code(path, lambda: _torch_load(path, records, weights_only=False))
        if imports:
            raise _unsafe(path, imports) from None
        raise CheckpointError(
            f"{path} is damaged or cut off: {_first_line(cause)}", hint=COPY_AGAIN
        ) from cause


def _torch_load(path: Path, records: Records | None, *, weights_only: bool) -> Loaded:
    """Mapped for its shapes alone where it can be said which record each storage is; else read whole."""
    storages: dict[int, int] = {}

    def seen(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        if storage.nbytes():
            storages[storage.data_ptr()] = storage.nbytes()
        return storage

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about deprecated dtypes and storages: nothing the reader can act on
        if records and path.suffix != ".safetensors":  # torch believes the extension, where it gets a path
            saved = torch.load(path, map_location=seen, mmap=True, weights_only=weights_only)
            if (places := _places(storages, records)) is not None:
                return Loaded(saved, places)
            del saved
        with open(path, "rb") as file:
            return Loaded(torch.load(file, map_location="cpu", weights_only=weights_only))


def _places(storages: Mapping[int, int], records: Records) -> dict[int, tuple[int, int]] | None:
    """The record of every storage. All lie at one distance from the mapping's first byte, which no one tells:

    it is the one at which each storage is the beginning of a record. None where no distance is, or several.
    """
    if not storages:
        return {}
    first = min(storages)
    bases = [first - start for start in records] if len(storages) != len(records) else [first - min(records)]
    fitting = [
        base
        for base in bases
        if all(records.get(address - base, -1) >= size for address, size in storages.items())
    ]
    if len(fitting) != 1:
        return None
    return {address: (address - fitting[0], size) for address, size in storages.items()}


def _load_plain_pickle(path: Path, unsafe: bool) -> Any:
    if unsafe:
        with open(path, "rb") as file:
            return _running_code(path, lambda: pickle.load(file))
    if imports := wanted_imports(path, zipped=False):
        raise _unsafe(path, imports)
    raise CheckpointError(f"{path} is no checkpoint: a pickle that torch.save did not write, without tensors")


def _running_code(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as cause:
        raise CheckpointError(
            f"{path} was unpickled, and that failed: {type(cause).__name__}: {_first_line(cause)}",
            hint="The code that it was saved with must be importable: run from its folder, "
            "or save plain weights there.",
        ) from cause


def _check_zip(path: Path) -> Records | None:
    """Where the values lie. Refuses what torch would read wrongly, or only with a word on its internals."""
    size = os.path.getsize(path)
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as cause:
        raise CheckpointError(
            f"{path} is cut off or damaged: it begins as a zip file ({size:,} bytes) but does not end as one",
            hint=COPY_AGAIN,
        ) from cause
    names = [record.filename for record in records]
    last = {name.rpartition("/")[2] for name in names}
    if "constants.pkl" in last:
        raise CheckpointError(
            f"{path} is a TorchScript archive, a program with its weights",
            hint="Save its weights where it was made: torch.save(model.state_dict(), 'weights.pt')",
        )
    if "data.pkl" not in last:
        kind = "a NumPy archive" if names and all(name.endswith(".npy") for name in names) else "a zip file"
        shown = ", ".join(names[:5]) or "nothing"
        raise CheckpointError(f"{path} is {kind} that torch.save did not write; it holds {shown}")
    # Mapped, a compressed record would be read as if its bytes were weights.
    if packed := [record.filename for record in records if record.compress_type != zipfile.ZIP_STORED]:
        raise CheckpointError(
            f"{path}: its records are compressed, as torch.save never does",
            problems=packed[:3],
            hint="Save it again with torch.save, or unpack it and pack it without compression: zip -0.",
        )
    if any(record.header_offset + record.file_size > size for record in records):
        raise CheckpointError(f"{path} is damaged: its records are longer than the file", hint=COPY_AGAIN)
    return _records(path, records)


def _records(path: Path, records: Sequence[zipfile.ZipInfo]) -> Records | None:
    """Where the values of storages lie; None where torch turns their bytes round as it reads."""
    found: Records = {}
    with open(path, "rb") as file:
        for record in records:
            folder, _, name = record.filename.rpartition("/")
            is_values = folder.rpartition("/")[2] == "data"
            if not is_values and name != "byteorder":
                continue
            file.seek(record.header_offset)
            local = file.read(30)
            # The local header's own lengths: torch.save pads there, so that values are aligned.
            start = record.header_offset + 30 + sum(struct.unpack("<HH", local[26:30].ljust(4, b"\0")))
            if is_values and record.file_size:
                found[start] = record.file_size
            elif not is_values:
                file.seek(start)
                if file.read(min(record.file_size, 16)).decode("latin-1") != sys.byteorder:
                    return None
    return found


def wanted_imports(path: Path, zipped: bool) -> list[str]:
    """What unpickling would import beyond plain tensors, as "module.name", sorted; nothing is executed."""
    if not zipped:
        with open(path, "rb") as file:
            return sorted(set(_imports(file)))
    with zipfile.ZipFile(path) as archive:
        pickled = next(name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl")
        with archive.open(pickled) as file:
            return sorted(set(_imports(file)))


def _imports(file: BinaryIO | Any) -> Iterable[str]:
    """The imports of up to five pickles in a row (a file of the old format has five)."""
    for _ in range(5):
        strings: list[str] = []
        memo: dict[int, str] = {}
        try:
            for opcode, argument, _position in pickletools.genops(file):
                found = ""
                if opcode.name in ("GLOBAL", "INST"):
                    found = argument.replace(" ", ".")
                elif opcode.name == "STACK_GLOBAL" and len(strings) >= 2:
                    found = ".".join(strings[-2:])
                elif opcode.name == "MEMOIZE":
                    memo[len(memo)] = strings[-1] if strings else ""
                elif "PUT" in opcode.name:
                    memo[argument] = strings[-1] if strings else ""
                elif opcode.name in ("GET", "BINGET", "LONG_BINGET"):
                    strings.append(memo.get(argument, ""))
                elif isinstance(argument, str):
                    strings.append(argument)
                if found and not _PLAIN.fullmatch(found):
                    yield found
        except (ValueError, IndexError, UnicodeDecodeError):  # the end, or no pickle any more
            return


def _unsafe(path: Path, imports: list[str]) -> UnsafeCheckpoint:
    """What it wants, and no command to paste: that would run the code that is warned of."""
    whole = any(name.startswith("torch.nn.modules.") for name in imports)
    what = "a whole pickled network, not plain tensors" if whole else "not plain tensors"
    weights = "model.state_dict()" if whole else "{'state_dict': model.state_dict()}"
    return UnsafeCheckpoint(
        f"{path} is {what}: reading it would run code, so it was not read",
        problems=[f"wants to import {name}" for name in imports],
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
