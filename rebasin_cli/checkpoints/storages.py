"""Where the values of a file of `torch.save` lie: in the records of a zip file, or behind the pickles.

A pickle refers to storages by names; `stored` gives them, and `read` the pickle's own value.
"""

from __future__ import annotations

import errno
import io
import os
import struct
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import torch

from ..errors import CheckpointError
from ..runtime import files
from .inert import Known, Reader
from .pickled import KNOWN, Storage, StorageType
from .safetensors_format import COPY_AGAIN

LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number, pickled first until PyTorch 1.6
PROTOCOL = 1001  # of the old format; pickled second
MAX_LINE = 1 << 16  # bytes of a name in a pickle


Records = tuple[tuple[int, int], dict[str, tuple[int, int]], bool]


def check_zip(path: Path, part: tuple[int, int] | None = None) -> Records:
    """Where its pickle and its values lie, as (first byte, bytes); whether bytes are in this machine's order.

    `part`: the first byte and the number of bytes where the zip file is only a part of the file. Refuses by
    name what torch.save did not write.
    """
    with files.opened(path) as file:
        start, size = part or (0, os.path.getsize(path))
        pickled, found, same = _checked(path, io.BufferedReader(Part(file, start, size), 1 << 12), size)
    moved = {name: (start + first, count) for name, (first, count) in found.items()}
    return (start + pickled[0], pickled[1]), moved, same


class Part(io.RawIOBase):
    """A part of a file as a file of its own, for zipfile."""

    def __init__(self, file: BinaryIO, start: int, size: int):
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + (0, self._at, self._size)[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "before the beginning")
        self._at = at
        return at

    def readinto(self, memory: Any) -> int:
        count = max(0, min(len(memory), self._size - self._at))
        self._file.seek(self._start + self._at)
        got = self._file.readinto(memoryview(memory)[:count])  # type: ignore[attr-defined]
        self._at += got
        return int(got)


def _checked(path: Path, file: Any, size: int) -> Records:
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as cause:
        raise CheckpointError(
            f"{path} is cut off or damaged: it begins as a zip file ({size:,} bytes) but does not end as one",
            hint=COPY_AGAIN,
        ) from cause
    names = [record.filename for record in records]
    if len(set(names)) < len(names):
        raise CheckpointError(f"{path} is damaged: it has records of the same name", hint=COPY_AGAIN)
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
    return _records(path, records, file, size)


def _records(path: Path, records: Sequence[zipfile.ZipInfo], file: Any, size: int) -> Records:
    first = next(record.filename for record in records if record.filename.rpartition("/")[2] == "data.pkl")
    folder, values = first.removesuffix("data.pkl"), f"{first.removesuffix('data.pkl')}data/"
    found: dict[str, tuple[int, int]] = {}
    pickled, order = (0, 0), "little"
    for record in records:
        name = record.filename
        if not name.startswith(values) and name not in (first, f"{folder}byteorder"):
            continue
        file.seek(record.header_offset)
        local = file.read(30)
        # The local header's own lengths: torch.save pads there, so that values are aligned.
        start = record.header_offset + 30 + sum(struct.unpack("<HH", local[26:30].ljust(4, b"\0")))
        if start + record.file_size > size:
            raise CheckpointError(f"{path} is damaged: its records are longer than the file", hint=COPY_AGAIN)
        if name == first:
            pickled = start, record.file_size
        elif name.startswith(values):
            found[name.removeprefix(values)] = start, record.file_size
        else:
            file.seek(start)
            order = file.read(min(record.file_size, 16)).decode("latin-1")
    if order not in ("little", "big"):
        raise CheckpointError(f"{path} is damaged or cut off: an unknown order of bytes", hint=COPY_AGAIN)
    return pickled, found, order == sys.byteorder


class Bounded:
    """A file for pickletools: no read asks for more memory than the file has bytes; lines end."""

    def __init__(self, file: io.BufferedIOBase, size: int):
        self._file, self._size = file, size
        self.readinto, self.seek = file.readinto, file.seek  # pickletools would call `tell` at every step

    def read(self, count: int) -> bytes:
        return self._file.read(count if count < MAX_LINE else min(count, self._size))

    def readline(self) -> bytes:
        return self._file.readline(MAX_LINE)


class Mapped:
    """The storages of a zip file: memory of the mapped file, never looked at, and where each lies in it.

    Where bytes have to be turned round (a file of another kind of processor), they are read into memory.
    """

    def __init__(
        self, path: Path, pickled: tuple[int, int], records: Mapping[str, tuple[int, int]], same: bool
    ):
        self._path, self._records, self._same = path, records, same
        self._start, self.pickled = pickled
        self._whole: Any = None  # all of the file, once something of it is asked for
        self._made: dict[str, torch.UntypedStorage] = {}
        self.places: dict[int, tuple[int, int]] | None = {} if same else None

    def read(self, file: Bounded, reader: Reader) -> Any:
        file.seek(self._start)
        return reader.load(io.BytesIO(file.read(self.pickled)))

    def stored(self, name: Any) -> Storage:
        _, dtype, key, _, count, *rest = _storage_id(name)
        if rest or key not in self._records:
            raise UnpicklingError(f"the values {key[:100]!r} are missing")
        start, size = self._records[key]
        if count * dtype.itemsize > size:
            raise UnpicklingError(f"the values {key[:100]!r} are cut off")
        if key not in self._made:
            self._made[key] = self._turned(start, size, dtype) if not self._same else self._map(start, size)
        return Storage(self._made[key], dtype)

    def _map(self, start: int, size: int) -> torch.UntypedStorage:
        if not size:
            return torch.UntypedStorage(0)
        if self._whole is None:
            size_of_all = os.path.getsize(self._path)
            self._whole = torch.UntypedStorage.from_file(str(self._path), False, size_of_all)
        values: torch.UntypedStorage = self._whole[start : start + size]
        if self.places is not None:
            self.places[values.data_ptr()] = (start, size)
        return values

    def _turned(self, start: int, size: int, dtype: torch.dtype) -> torch.UntypedStorage:
        values = torch.UntypedStorage(size)
        with files.opened(self._path) as file:
            file.seek(start)
            _fill(file, values)
        values.byteswap(dtype)
        return values


class InStream:
    """The storages of the old format: their values follow the pickles, so all are read into memory."""

    places = None

    def __init__(self, size: int):
        self._size = size
        self._roots: dict[str, Storage] = {}
        self._views: dict[str, Storage] = {}

    def read(self, file: Any, reader: Reader) -> Any:
        reader.load(file)  # the magic number, known by its bytes
        if reader.load(file) != PROTOCOL:
            raise UnpicklingError("its protocol is none that PyTorch has written")
        reader.load(file)  # the sizes of C's types where it was written
        saved = reader.load(file)
        keys = reader.load(file)
        if type(keys) is not list or len(keys) != len(set(keys)) or set(keys) != self._roots.keys():
            raise UnpicklingError("the values that it holds are not those that it names")
        for key in keys:
            root = self._roots[key]
            (count,) = struct.unpack("<q", file.read(8))
            if count * root.dtype.itemsize != root.values.nbytes():
                raise UnpicklingError(f"the values {key[:100]!r} are cut off")
            _fill(file, root.values)
            if sys.byteorder == "big":
                root.values.byteswap(root.dtype)
        return saved

    def stored(self, name: Any) -> Any:
        if type(name) is tuple and len(name) == 4 and name[0] == "module":
            return name[1]  # a class, once with its source text
        _, dtype, key, _, count, *rest = _storage_id(name)
        if key not in self._roots:
            size = count * dtype.itemsize
            if size > self._size:
                raise UnpicklingError(f"the values {key[:100]!r} are cut off")
            self._size -= size
            self._roots[key] = Storage(torch.UntypedStorage(size), dtype)
        root = Storage(self._roots[key].values, dtype)
        if not rest or rest[0] is None:
            return root
        return self._view(root, *rest)

    def _view(self, root: Storage, view: Any) -> Storage:
        if type(view) is not tuple or len(view) != 3 or any(type(part) is not int for part in view[1:]):
            raise UnpicklingError("a part of its values is none")
        key, offset, count = view
        start, size = offset * root.dtype.itemsize, count * root.dtype.itemsize
        if type(key) is not str or min(start, size) < 0 or start + size > root.values.nbytes():
            raise UnpicklingError("a part of its values reaches beyond them")
        if key not in self._views:
            self._views[key] = Storage(root.values[start : start + size], root.dtype)
        return self._views[key]


def _storage_id(name: Any) -> tuple[Any, ...]:
    """("storage", dtype, key, device, count, …) of what a pickle says of a storage."""
    if type(name) is not tuple or len(name) not in (5, 6) or name[0] not in ("storage", b"storage"):
        raise UnpicklingError("it refers to what is no storage")
    word, kind, key, device, count, *rest = name
    if type(kind) is not StorageType or type(key) is not str or type(count) is not int or count < 0:
        raise UnpicklingError("a storage is none that PyTorch has")
    return word, kind.dtype, key, device, count, *rest


def _fill(file: Any, values: torch.UntypedStorage) -> None:
    """Read the file's next bytes into all of `values`."""
    memory = memoryview(torch.empty(0, dtype=torch.uint8).set_(values).numpy().data)
    done = 0
    while done < len(memory):
        got = file.readinto(memory[done : done + (1 << 30)])
        if not got:
            raise UnpicklingError("its values are cut off")
        done += got


def _from_bytes(reader: Reader, data: Any) -> Any:
    """A storage within a pickle that torch.save did not write: the old format as a string of bytes."""
    if type(data) is not bytes or not data.startswith(LEGACY):
        raise UnpicklingError("what should be values is none")
    reader.spend(len(data))
    storages = InStream(len(data))
    inner = Reader(KNOWN, storages.stored, size=len(data))
    found = storages.read(Bounded(io.BytesIO(data), len(data)), inner)
    if type(found) is not Storage:
        raise UnpicklingError("what should be values is none")
    return found


NESTED = {("torch.storage", "_load_from_bytes"): Known(_from_bytes)}
