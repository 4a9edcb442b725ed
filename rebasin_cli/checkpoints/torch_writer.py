"""A file as torch.save writes one, tensor by tensor: the envelope of another file, with new weights in it.

    NAME/data.pkl     the envelope: plain values, and of every tensor its record, dtype and shape
    NAME/byteorder
    NAME/data/0 …     the tensors' bytes, each beginning at a multiple of 64, as torch maps them
    NAME/version

torch.save wants all tensors in memory at once and this needs one block of one; for the same tensors and
envelope the bytes are the same. `torch.load(…, weights_only=True)` reads what is written.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch

from ..errors import RebasinError
from ..runtime import files
from .around import Slot, slots
from .pickled import DTYPES, STORAGES
from .safetensors_format import nbytes

SUFFIX = ".rebasin.json"
OTHER = "lies beside other weights than it was written with, and is not used"
ROOT = "archive"  # what torch calls it where it is given no name
ALIGNED = 64
EARLIEST = (1980, 1, 1, 0, 0, 0)  # a zip's first day: the time of writing is no part of a file

# Storages that have a class of their own; all others are bytes, and their tensors name the dtype.
TYPED = {
    DTYPES[f"torch.{of}"]: getattr(torch, name) for name, of in STORAGES.items() if "Untyped" not in name
}


@dataclass(frozen=True)
class _Record:
    key: str
    kind: Any
    count: int


def write(
    file: BinaryIO,
    envelope: Any,
    plan: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    put: Callable[[str, IO[bytes]], None],
) -> str:
    """Write `envelope`, plain values with a `Slot` for every tensor of `plan`; gives what `listing` will.

    `put(name, record)` writes the bytes of one tensor, as many as its dtype and shape say, into its record;
    it is asked in the order of names. Raises OSError as the file does.
    """
    keys = {name: str(number) for number, name in enumerate(sorted(slots(envelope)))}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        _record(archive, "data.pkl", _pickled(envelope, plan, keys))
        _record(archive, "byteorder", b"little")
        for name, key in keys.items():
            with archive.open(_aligned(archive, f"data/{key}"), "w", force_zip64=True) as record:
                put(name, record)
        _record(archive, "version", b"3\n")
        return _listed(archive)


def listing(path: Path) -> str:
    """A digest of what a file's records are: their names, sizes and checksums. No values are read.

    Raises OSError, BadZipFile and what else zipfile says of a file that is none of `torch.save`.
    """
    with zipfile.ZipFile(path) as archive:
        return _listed(archive)


def _listed(archive: zipfile.ZipFile) -> str:
    lines = [f"{one.filename} {one.file_size} {one.CRC}\n" for one in archive.infolist()]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def _pickled(
    envelope: Any, plan: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], keys: Mapping[str, str]
) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if isinstance(value, _Record):
                return "storage", value.kind, value.key, "cpu", value.count
            return None

        def reducer_override(self, value: Any) -> Any:
            if not isinstance(value, Slot):
                return NotImplemented
            dtype, shape = plan[value.name]
            strides = torch.empty(shape, device="meta").stride()
            size = nbytes(dtype, shape)
            where = keys[value.name]
            if dtype in TYPED:
                record = _Record(where, TYPED[dtype], size // dtype.itemsize)
                return torch._utils._rebuild_tensor_v2, (record, 0, shape, strides, False, OrderedDict())
            record = _Record(where, torch.UntypedStorage, size)
            return torch._utils._rebuild_tensor_v3, (record, 0, shape, strides, False, OrderedDict(), dtype)

    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(envelope)
    return buffer.getvalue()


def _record(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    with archive.open(_aligned(archive, name), "w", force_zip64=True) as record:
        record.write(content)


def _aligned(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """A record whose bytes begin at a multiple of 64: its header is filled up, as torch.save does."""
    info = zipfile.ZipInfo(f"{ROOT}/{name}", date_time=EARLIEST)
    info.create_system = 3  # the same on every system
    assert archive.fp is not None  # it is open
    before = archive.fp.tell() + 30 + len(info.filename.encode())
    before += 20 + 4  # its zip64 lengths; our own field's head
    padding = -before % ALIGNED
    info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    return info


def of(path: Path) -> Path:
    return path.with_name(f"{path.name}{SUFFIX}")


def encoded(records: str, metadata: Mapping[str, str]) -> bytes:
    """`records` are `listing`'s of the weights' file."""
    content = {"records": records, "metadata": dict(sorted(metadata.items()))}
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def read(path: Path, listed: Callable[[Path], str] = listing) -> tuple[dict[str, str], str]:
    """The metadata of a torch file, and why that which is there is not used; neither where none is.

    `listed` is how such files are listed.
    """
    try:
        content = json.loads(files.text(of(path), str(of(path))))
        records, metadata = content["records"], content["metadata"]
        if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
            return {}, ""
        same = records == listed(path)
    except (RebasinError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}, ""
    except (zipfile.BadZipFile, NotImplementedError):
        return {}, f"{of(path).name} {OTHER}"
    return (metadata, "") if same else ({}, f"{of(path).name} {OTHER}")
