"""The safetensors format: a checked header, tensors read from the file, and our canonical header.

    8 bytes   n, little-endian: how long the header is
    n bytes   JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, …}
    the rest  the tensors, back to back: no hole, no overlap, nothing after the last

The format's own description: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..runtime import files
from ..runtime.text import once
from .stored import Piece, StoredFile

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}

MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors library
MAX_RANK = 64
COPY_AGAIN = "Copy or download the file again."


class Entry(NamedTuple):
    """Where one tensor lies; `start` and `stop` in bytes from the beginning of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """One .safetensors file: `entries` and `metadata` from its header, tensors read when asked for.

    Opening reads the header only. Raises CheckpointError with every problem of the header.
    """

    def __init__(self, path: Path):
        self.file = StoredFile(path)
        with files.opened(path) as file:
            self.entries, self.metadata = read_header(file, path)

    def tensor(self, name: str) -> Tensor:
        return self.file.tensor(self._piece(name))

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self.file.tensor(self._piece(name).rows(start, stop))

    def _piece(self, name: str) -> Piece:
        entry = self.entries[name]
        return Piece(entry.start, entry.dtype, entry.shape)


def read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """The entries, in the header's order, and the metadata; everything is checked against the file's size."""
    size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    if len(first) < 8:
        raise CheckpointError(
            f"{path} is cut off: {size} bytes, and a safetensors file begins with 8 bytes of header length",
            hint=COPY_AGAIN,
        )
    length = int.from_bytes(first, "little")
    if length > size - 8:
        raise CheckpointError(
            f"{path} is cut off or no safetensors file: "
            f"its header should be {length:,} bytes long, the file has {size - 8:,} more",
            hint=COPY_AGAIN,
        )
    if length > MAX_HEADER:
        raise CheckpointError(f"{path}: a header of {length:,} bytes; at most {MAX_HEADER:,} are read")
    header = _parse(file.read(length), path)
    metadata = header.pop("__metadata__", {})
    problems, entries = _check_metadata(metadata), {}
    problems += [f"{name!a}  is no text: half of a surrogate pair" for name in header if not is_text(name)]
    for name, described in header.items():
        found = _entry(described, base=8 + length)
        if isinstance(found, Entry):
            entries[name] = found
        else:
            problems.append(f"{name}  {found}")
    problems = problems or _check_layout(entries, base=8 + length)
    if problems:
        raise CheckpointError(f"{path}: the header is damaged", problems=problems, hint=COPY_AGAIN)
    end = max((entry.stop for entry in entries.values()), default=8 + length)
    if end > size:
        raise CheckpointError(
            f"{path} is cut off: its tensors end at byte {end:,}, the file at {size:,}", hint=COPY_AGAIN
        )
    if end < size:
        raise CheckpointError(f"{path}: {size - end:,} bytes after the last tensor", hint=COPY_AGAIN)
    return entries, metadata


def _parse(header: bytes, path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(header.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as cause:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise CheckpointError(f"{path}: the header is not valid JSON: {cause}", hint=COPY_AGAIN) from cause
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: the header is JSON, but not an object", hint=COPY_AGAIN)
    return parsed


def _check_metadata(metadata: Any) -> list[str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        wrong = (key for key, value in metadata.items() if not (is_text(key) and is_text(value)))
        return [
            f"__metadata__  {key!a} is no text, or what it says: half of a surrogate pair" for key in wrong
        ]
    return ["__metadata__  should map text to text"]


def is_text(text: str) -> bool:
    """Whether it can be written: JSON may escape half of a surrogate pair, which no file can hold."""
    try:
        text.encode()
        return True
    except UnicodeEncodeError:
        return False


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63  # type(), because True is an int


def _entry(described: Any, base: int) -> Entry | str:
    """One tensor's entry, or what is wrong with it."""
    if not isinstance(described, dict) or not {"dtype", "shape", "data_offsets"} <= described.keys():
        return "should have dtype, shape and data_offsets"
    dtype, shape, offsets = (described[key] for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        return f"dtype {dtype!r} is not one of {', '.join(DTYPES)}"
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_is_count, shape)):
        return f"shape should be a list of at most {MAX_RANK} counts"
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        return "data_offsets should be two counts of bytes"
    needed = math.prod(shape) * DTYPES[dtype].itemsize
    if math.prod(filter(None, shape)) >= 2**63:
        return f"shape {shape} is beyond any memory"
    if (span := offsets[1] - offsets[0]) != needed:
        return f"shape {shape} of {dtype} needs {needed:,} bytes, data_offsets {offsets} span {span:,}"
    return Entry(DTYPES[dtype], tuple(shape), base + offsets[0], base + offsets[1])


def _check_layout(entries: Mapping[str, Entry], base: int) -> list[str]:
    """Back to back from `base`: anything else is damage, or two tensors that would share bytes unseen."""
    problems, end, before = [], base, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start < end:
            problems.append(f"{name}  its bytes overlap those of {before}")
        elif entry.start > end:
            problems.append(f"{name}  {entry.start - end:,} bytes between {before} and it belong to nothing")
        if entry.stop >= end:
            end, before = entry.stop, name
    return problems


def encode_header(
    plan: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """The first bytes of a file with these tensors, and the order in which their data must follow.

    Canonical: wide dtypes first, so that every tensor is aligned; then by name; metadata sorted; padded to
    8 bytes with spaces. The same plan and metadata give the same bytes (the safetensors library orders
    metadata at random).
    """
    order = sorted(plan, key=lambda name: (-plan[name][0].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in order:
        dtype, shape = plan[name]
        start, end = end, end + nbytes(dtype, shape)
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def nbytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize
