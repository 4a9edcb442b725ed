"""Files that are wrong in one way each, made by code: `MAKERS` maps what is wrong to who makes it.

A maker writes one file and returns its path, or None for what is made otherwise (a folder, a pipe).
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

MLP = {  # a network that a built-in spec knows
    "layers.0.weight": torch.linspace(-1, 1, 12 * 64).reshape(12, 64),
    "layers.0.bias": torch.linspace(0, 1, 12),
    "head.weight": torch.linspace(1, -1, 120).reshape(10, 12),
    "head.bias": torch.zeros(10),
}
ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    """A safetensors file with this header: bytes as they are, anything else as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def safetensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
    """A correct file with any names: the library refuses some that others may write."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    data = b""
    codes = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.int64: "I64"}
    codes |= {torch.bfloat16: "BF16", torch.int8: "I8", torch.uint8: "U8", torch.complex64: "C64"}
    for name, tensor in tensors.items():
        these = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        header[name] = {
            "dtype": codes[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(these)],
        }
        data += these
    return raw(path, header, data)


def header_of(**changed: object) -> dict[str, object]:
    return {"w": {**ONE, **changed}}


def torch_file(path: Path, saved: object, **options: object) -> Path:
    torch.save(saved, path, **options)
    return path


def rezipped(path: Path, change: Callable[[str, bytes], tuple[str, bytes] | None], **options: object) -> Path:
    """A torch file whose records were changed one by one; None leaves one out."""
    buffer = io.BytesIO()
    torch.save(MLP, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w", **options) as new:
        for name in old.namelist():
            if (kept := change(name, old.read(name))) is not None:
                new.writestr(*kept)
    return path


def pickled(path: Path, payload: object) -> Path:
    path.write_bytes(pickle.dumps(payload, protocol=2))
    return path


class Runs:
    """What a pickle would call on being read."""

    def __init__(self, function: Callable, *args: object):
        self.how = function, args

    def __reduce__(self):
        return self.how


def with_value(value: float, name: str = "layers.0.weight", at: int = 5) -> dict[str, torch.Tensor]:
    changed = {key: tensor.clone() for key, tensor in MLP.items()}
    changed[name].view(-1)[at] = value
    return changed


def bits(pattern: int) -> float:
    """A float32 by its bits."""
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def flipped(path: Path, at: int, bit: int) -> Path:
    """A correct file with one bit of its header turned."""
    safetensors(path, MLP)
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return path


def sparse_file(path: Path, size: int, start: bytes = b"") -> Path:
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(size)
    return path


def looped(path: Path) -> Path:
    os.symlink(path.name, path)
    return path


def index_of(path: Path, weight_map: object, **more: object) -> Path:
    index = path.with_name("model.safetensors.index.json")
    index.write_text(json.dumps({"weight_map": weight_map, **more}))
    return index


NAN = math.nan
