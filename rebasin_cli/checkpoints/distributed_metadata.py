"""The `.metadata` of torch.distributed.checkpoint: which tensors a folder has, and where their chunks lie.

torch unpickles it, which runs code that is in it; here it is read as data (`inert.py`).
"""

from __future__ import annotations

import io
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch

from ..errors import CheckpointError, UnsafeCheckpoint
from ..runtime import files
from . import envelopes, pieces
from .containers import attributes
from .inert import Inert, Known, Reader, TooMuch
from .pickled import DTYPES, KNOWN, MAX_AXES
from .pieces import DISTCP
from .safetensors_format import COPY_AGAIN
from .saved import MAX_DEPTH, words
from .saved import Path as Keys
from .storages import Bounded
from .torch_file import DAMAGED

MAX_METADATA = 256_000_000  # bytes
MAX_CELLS = 1 << 22  # of the grid that the bounds of a tensor's chunks make

_MODULE = "torch.distributed.checkpoint"
_OLD = "torch.distributed._shard.sharded_tensor.metadata"
_CLASSES = {
    **{
        name: (f"{_MODULE}.metadata",)
        for name in (
            *("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata", "StorageMeta"),
            *("BytesStorageMetadata", "ShardedTensorStorageMetadata"),
        )
    },
    **{name: (f"{_MODULE}.metadata", _OLD) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")},
    "MEM_FORMAT_ENCODING": (_OLD,),
    "ShardedTensorMetadata": (_OLD,),
    "ShardMetadata": ("torch.distributed._shard.metadata",),
    "_StorageInfo": (f"{_MODULE}.filesystem",),
    "_StoragePrefix": (f"{_MODULE}.filesystem",),
    **{name: ("pathlib", "pathlib._local") for name in ("PosixPath", "PurePosixPath", "Path", "WindowsPath")},
}


def _inert(kind: str) -> Known:
    return Known(lambda reader, *args: Inert(kind, args))


_KNOWN = KNOWN | {(module, name): _inert(name) for name, modules in _CLASSES.items() for module in modules}
# What lies at the top of a run's state, where nothing says how the names are nested.
_OF_THE_RUN = {"optimizer", "optim", "optimizers", "scheduler", "dataloader", "rng"}


class _Damaged(Exception):
    """What cannot be true of such a folder."""


@dataclass(frozen=True)
class Item:
    """One chunk of a tensor: where it lies in the tensor, and in which file, from byte `start` on.

    `length` in bytes is of all that the file has of it, with what says how the values lie.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class Stored:
    """One tensor by its name in the folder; `items` lie in the order of their first rows."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    items: tuple[Item, ...]


def read(path: Path) -> tuple[dict[Any, Any], dict[Keys, Stored]]:
    """What was saved, as nested dictionaries of tensors without values; and by its keys what each tensor is.

    The chunks fill every tensor, each value once. Raises CheckpointError, and UnsafeCheckpoint where a name
    is not one that such a pickle needs.
    """
    try:
        return _tree(_content(path))
    except _Damaged as cause:
        raise CheckpointError(f"{path} is damaged: {cause}", hint=COPY_AGAIN) from cause


def _content(path: Path) -> Inert:
    """What `.metadata` says, as values that do nothing."""
    with files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_METADATA:
            raise CheckpointError(f"{path}: {size:,} bytes; at most {MAX_METADATA:,} are read")
        reader = Reader(_KNOWN, None, size=size)
        try:
            saved = reader.load(Bounded(io.BytesIO(file.read()), size))
        except TooMuch as cause:
            raise CheckpointError(f"{path} was not read: {cause}", hint=COPY_AGAIN) from cause
        except DAMAGED as cause:
            raise CheckpointError(f"{path} is damaged or cut off: {cause}"[:300], hint=COPY_AGAIN) from cause
    if reader.unknown:
        raise UnsafeCheckpoint(
            f"{path} names what no .metadata needs: reading it would run code, so it was not read",
            problems=[f"wants to import {name[:100]}" for name in sorted(reader.unknown)],
            hint="Do not load this folder with torch, which would run it. Ask who made it for safetensors.",
        )
    if type(saved) is not Inert or saved.kind != "Metadata":
        raise CheckpointError(f"{path} is no metadata of torch.distributed.checkpoint", hint=COPY_AGAIN)
    return saved


def _tree(saved: Inert) -> tuple[dict[Any, Any], dict[Keys, Stored]]:
    fields = _fields(saved, "Metadata")
    listed = _mapping(fields.get("state_dict_metadata"), "state_dict_metadata")
    items = _items(_mapping(fields.get("storage_data"), "storage_data"))
    paths = fields.get("planner_data")
    paths = paths if isinstance(paths, dict) else {}
    reshaped = fields.get("mcore_data")
    reshaped = reshaped if isinstance(reshaped, dict) else {}
    nested = _nested(list(listed))
    tree: dict[Any, Any] = {}
    stored: dict[Keys, Stored] = {}
    for name, what in listed.items():
        if type(name) is not str:
            raise _Damaged("a name is no text")
        value: Any = Inert("pickled object")
        path = _path(paths.get(name), name) or nested(name)
        if type(what) is Inert and what.kind in ("TensorStorageMetadata", "ShardedTensorStorageMetadata"):
            its = stored[path] = _tensor(name, what, items.get(name, {}))
            value = torch.empty(its.shape, dtype=its.dtype, device="meta")
        elif type(what) is not Inert or what.kind != "BytesStorageMetadata":
            raise _Damaged(f"{name} is neither a tensor nor an object")
        if isinstance(more := reshaped.get(name), dict) and "nd_reformulated_orig_global_shape" in more:
            stored.pop(path, None)  # flattened over axes by Megatron's optimizer
            value = Inert("tensor in Megatron's flat form")
        _put(tree, path, value, name)
    return tree, stored


def _put(tree: dict[Any, Any], path: tuple[Any, ...], value: Any, name: str) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
        if type(tree) is not dict:
            raise _Damaged(f"{name} lies within another value")
    if path[-1] in tree:
        raise _Damaged(f"two values lie where {name} does")
    tree[path[-1]] = value


def _path(path: Any, name: str) -> Keys:
    """The keys that led to a value when it was saved; () where they are not told."""
    if type(path) is not tuple or not path:
        return ()
    if len(path) > MAX_DEPTH or any(type(key) not in (str, int) for key in path):
        raise _Damaged(f"{name} lies under keys that are none")
    return path


def _nested(names: Sequence[Any]) -> Callable[[str], Keys]:
    """The keys to a value by its name alone: first words that are no module's are keys of what was saved."""
    heads = {name.partition(".")[0] for name in names if type(name) is str and "." in name}
    of_the_run = {head for head in heads if words(head) & _OF_THE_RUN}
    keys = of_the_run | (heads & {"state_dict", "app"})
    keys |= heads & set(envelopes.ENVELOPES) if of_the_run else set()

    def of(name: str) -> Keys:
        head, dot, rest = name.partition(".")
        if not dot or head not in keys:
            return (name,)
        return (head, *rest.split(".", 1)) if head == "app" else (head, rest)

    return of


def _fields(value: Any, *kinds: str) -> dict[str, Any]:
    found = attributes(value) if type(value) is Inert and value.kind in kinds else None
    if found is None:
        raise _Damaged(f"{kinds[0]} is expected, and is something else")
    return found


def _mapping(value: Any, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _Damaged(f"it has no {what}")
    return value


def _items(storage: Mapping[Any, Any]) -> dict[str, dict[Any, tuple[str, int, int]]]:
    """{tensor: {offsets: (file, first byte, length)}}; of what has no offsets, under None."""
    found: dict[str, dict[Any, tuple[str, int, int]]] = {}
    for index, info in storage.items():
        fields, where = _fields(index, "MetadataIndex"), _fields(info, "_StorageInfo")
        name, offset = fields.get("fqn"), fields.get("offset")
        if type(name) is not str or not (offset is None or _counts(offset)):
            raise _Damaged("an item is of nothing that has a name")
        file, span = where.get("relative_path"), (where.get("offset"), where.get("length"))
        if type(file) is not str or pieces.escapes(file, (DISTCP,)):
            raise _Damaged(f"{name} lies in {str(file)[:100]!r}, which is no file of this folder")
        if not _counts(span):
            raise _Damaged(f"{name} lies at {span[0]!r:.40}, {span[1]!r:.40} bytes long")
        if where.get("transform_descriptors"):
            how = f"{where['transform_descriptors']!r:.60}"
            raise _Damaged(f"{name} is transformed ({how}), and only plain items are read")
        its = found.setdefault(name, {})
        if offset in its:
            raise _Damaged(f"two items are of the same part of {name}")
        its[offset] = file, span[0], span[1]
    return found


def _counts(value: Any) -> TypeGuard[tuple[int, ...]]:
    return type(value) is tuple and all(type(one) is int and 0 <= one < 1 << 62 for one in value)


def _tensor(name: str, what: Inert, items: Mapping[Any, tuple[str, int, int]]) -> Stored:
    fields = _fields(what, what.kind)
    properties, shape, chunks = (fields.get(key) for key in ("properties", "size", "chunks"))
    state = properties.state if type(properties) is Inert and properties.kind == "TensorProperties" else None
    dtype = state[0] if type(state) is tuple and state else None
    if type(state) is dict:
        dtype = state.get("dtype")
    if type(dtype) is not torch.dtype or str(dtype) not in DTYPES:
        raise _Damaged(f"{name} has no dtype")
    if not _counts(shape) or len(shape) > MAX_AXES:
        raise _Damaged(f"{name} has no shape")
    if math.prod(filter(None, shape)) * dtype.itemsize >= 1 << 63:
        raise _Damaged(f"{name} is beyond any memory")
    if not isinstance(chunks, list):
        raise _Damaged(f"{name} has no chunks")
    made = []
    for chunk in chunks:
        part = _fields(chunk, "ChunkStorageMetadata", "ShardMetadata")
        offsets = part.get("offsets", part.get("shard_offsets"))
        sizes = part.get("sizes", part.get("shard_sizes"))
        offsets, sizes = (tuple(one) if type(one) is list else one for one in (offsets, sizes))
        if not _counts(offsets) or not _counts(sizes) or not len(offsets) == len(sizes) == len(shape):
            raise _Damaged(f"{name} has a chunk that lies nowhere")
        if any(offset + size > end for offset, size, end in zip(offsets, sizes, shape, strict=True)):
            raise _Damaged(f"{name} has a chunk that reaches beyond its shape {list(shape)}")
        if 0 in sizes:
            continue  # of a rank that had none of it
        where = items.get(offsets, items.get(None) if len(chunks) == 1 else None)
        if where is None:
            raise _Damaged(f"{name} has a chunk at {list(offsets)} that lies in no file")
        if where[2] < math.prod(sizes) * dtype.itemsize:
            raise _Damaged(f"{name} has a chunk of {list(sizes)} in an item of {where[2]:,} bytes")
        made.append(Item(offsets, sizes, *where))
    if 0 not in shape:
        _check_tiling(name, shape, made)
    return Stored(name, dtype, shape, tuple(sorted(made, key=lambda item: item.offsets)))


def _check_tiling(name: str, shape: tuple[int, ...], items: Sequence[Item]) -> None:
    """Raise _Damaged unless every value of the tensor is in one chunk, and in no two."""
    if len(items) == 1 and items[0].sizes == shape:
        return
    if sum(math.prod(item.sizes) for item in items) != math.prod(shape):
        raise _Damaged(f"the chunks of {name} do not fill its shape {list(shape)} once")
    bounds = [
        sorted({at for item in items for at in (item.offsets[axis], item.offsets[axis] + item.sizes[axis])})
        for axis in range(len(shape))
    ]
    cells = math.prod(max(1, len(each) - 1) for each in bounds)
    if cells > MAX_CELLS:
        raise _Damaged(f"the chunks of {name} make {cells:,} cells; at most {MAX_CELLS:,} are looked at")
    taken = np.zeros([max(1, len(each) - 1) for each in bounds], bool)
    for item in items:
        cut = tuple(
            slice(bisect_left(each, offset), bisect_left(each, offset + size))
            for each, offset, size in zip(bounds, item.offsets, item.sizes, strict=True)
        )
        if taken[cut].any():
            raise _Damaged(f"two chunks of {name} overlap at {list(item.offsets)}")
        taken[cut] = True
