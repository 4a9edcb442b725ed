"""Folders of torch.distributed.checkpoint (DCP): tensors in chunks, in one or several files.

    .metadata       a pickle: names, shapes, chunks; and of each chunk its file, first byte and length
    __0_0.distcp    items one after the other, each a small file of torch.save; or one file of safetensors
    __1_0.distcp …  what other ranks wrote

torch's own reader unpickles `.metadata`, which runs code that is in it; here both kinds of pickles are read
as data (`inert.py`). The weights among all that is saved are found as in a torch file (`envelopes.py`).
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError, UnsafeCheckpoint
from ..runtime import files
from . import envelopes, pieces
from .inert import Inert, Known, Reader, TooMuch
from .opening import attributes
from .pieces import DISTCP
from .rebuilding import DTYPES, KNOWN, MAX_AXES
from .safetensors_format import COPY_AGAIN, Entry, read_header
from .saved import MAX_DEPTH, words
from .saved import Path as Keys
from .storages import Bounded, Mapped, check_zip
from .stored import Piece, StoredFile
from .torch_file import DAMAGED, ZIP, Loaded, TorchEntry

MAX_METADATA = 256_000_000  # bytes
MAX_PICKLE = 1 << 20  # bytes of an item that say what its tensor is
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
class _Item:
    """One chunk of a tensor: where it lies in the tensor, and in which file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str = ""
    start: int = 0
    length: int = 0


@dataclass(frozen=True)
class _Stored:
    """One tensor by its name in the folder; `items` lie in the order of their first rows."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    items: tuple[_Item, ...]


class DistributedFolder:
    """The weights of one folder: `entries` by plain names, and `found`, which says where they were.

    Opening reads `.metadata` and looks that all chunks are there: they fill every tensor, each value once.
    Raises CheckpointError, UnsafeCheckpoint where a name is not one that such a pickle needs, UsageError for
    a `key` that is not there.
    """

    def __init__(self, metadata: Path, key: str | None = None):
        self.folder = metadata.parent
        saved = _read(metadata)
        try:
            tree, stored = _tree(saved)
        except _Damaged as cause:
            raise CheckpointError(f"{metadata} is damaged: {cause}", hint=COPY_AGAIN) from cause
        found = envelopes.find(tree, key=key, name=str(self.folder))
        self._stored = {name: stored[found.places[name]] for name in found.tensors}
        self.found = replace(found, tensors={}, places={})
        self.entries = {name: TorchEntry(its.dtype, its.shape) for name, its in self._stored.items()}
        self._files: dict[str, StoredFile] = {}
        self._of_safetensors: dict[str, dict[str, Entry]] = {}
        self._pieces: dict[tuple[str, _Item], Piece | Tensor] = {}
        self._alike: dict[tuple[bytes, str, int], Piece] = {}  # by pickle and record, from its first byte on
        self._last: tuple[_Item, Tensor] | None = None  # does not lie row by row, and is asked for in parts
        self._check()

    def tensor(self, name: str) -> Tensor:
        its = self._stored[name]
        return self.rows(name, 0, its.shape[0]) if its.shape else self._whole(its, its.items[0])

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Read into their places, one chunk after the other."""
        its = self._stored[name]
        rest = its.shape[1:]
        made = torch.empty((stop - start, *rest), dtype=its.dtype)
        for item in its.items if made.numel() else ():
            low, high = max(start, item.offsets[0]), min(stop, item.offsets[0] + item.sizes[0])
            if low >= high:
                continue
            piece = self._piece(its, item)
            first, last = low - item.offsets[0], high - item.offsets[0]
            into = made[low - start : high - start]
            if isinstance(piece, Piece) and piece.stride is None:
                part = piece.rows(first, last)
                if item.sizes[1:] == rest:
                    self._files[item.file].fill(into, part.start)
                    continue
                values = self._files[item.file].tensor(part)
            else:
                values = self._kept(its, item)[first:last]
            for axis, (offset, size) in enumerate(zip(item.offsets[1:], item.sizes[1:], strict=True), 1):
                into = into.narrow(axis, offset, size)
            into.copy_(values)
        return made

    def _kept(self, its: _Stored, item: _Item) -> Tensor:
        """A chunk that does not lie row by row, read once for all its rows."""
        if self._last is None or self._last[0] is not item:
            self._last = None
            self._last = item, self._whole(its, item)
        return self._last[1]

    def _whole(self, its: _Stored, item: _Item) -> Tensor:
        piece = self._piece(its, item)
        return piece if isinstance(piece, Tensor) else self._files[item.file].tensor(piece)

    def _piece(self, its: _Stored, item: _Item) -> Piece | Tensor:
        """Where the values of a chunk lie in its file, as its own few bytes say; looked at once."""
        if (its.name, item) not in self._pieces:
            if item.file in self._of_safetensors:
                entry = self._of_safetensors[item.file].get(its.name)
                found: Piece | Tensor | None = entry and Piece(entry.start, entry.dtype, entry.shape)
            else:
                found = self._of_torch(self.folder / item.file, item)
            what = None if found is None else (found.dtype, tuple(found.shape))
            if what != (its.dtype, item.sizes) or found is None:
                told = "no tensor" if what is None else f"{what[0]} of shape {list(what[1])}"
                raise CheckpointError(
                    f"{self.folder / item.file}: byte {item.start:,} should be {its.dtype} of shape "
                    f"{list(item.sizes)} for {its.name}, and is {told}",
                    hint=COPY_AGAIN,
                )
            self._pieces[its.name, item] = found
        return self._pieces[its.name, item]

    def _of_torch(self, path: Path, item: _Item) -> Piece | Tensor | None:
        """Where the values of an item of torch.save lie. Many have the same pickle, which is read once."""
        pickled, records, same = check_zip(path, (item.start, item.length))
        if pickled[1] > MAX_PICKLE or len(records) != 1 or not same:
            return _of_pickle(path, item, pickled, records, same)
        ((key, (start, size)),) = records.items()
        with files.opened(path) as file:
            file.seek(pickled[0])
            alike = file.read(pickled[1]), key, size
        if alike not in self._alike:
            found = _of_pickle(path, item, pickled, records, same)
            if not isinstance(found, Piece):
                return found
            self._alike[alike] = found._replace(start=found.start - start)
        return self._alike[alike]._replace(start=self._alike[alike].start + start)

    def _check(self) -> None:
        """Open every file that is needed, and look that it holds all that is said to be in it."""
        spans: dict[str, list[tuple[int, int, str]]] = {}
        for its in self._stored.values():
            for item in its.items:
                spans.setdefault(item.file, []).append((item.start, item.start + item.length, its.name))
        problems = []
        for name, inside in sorted(spans.items()):
            path = self.folder / name
            if leads_out(self.folder, path):
                problems.append(f"{name}  is a link that leads out of the folder")
                continue
            try:
                self._files[name] = StoredFile(path)
                with files.opened(path) as file:
                    head, size = file.read(9), os.fstat(file.fileno()).st_size
                    if not head.startswith(ZIP) and head[8:] == b"{":
                        file.seek(0)
                        self._of_safetensors[name] = read_header(file, path)[0]
                        tensors = Counter(tensor for *_, tensor in inside)
                        twice = [tensor for tensor, count in tensors.items() if count > 1]
                        problems += [f"{name}  has one name for several parts of {its}" for its in twice]
                        continue
            except FileNotFoundError:
                problems.append(f"{name}  is missing")
                continue
            end, before = 0, ""
            for start, stop, tensor in sorted(inside):
                if stop > size:
                    problems.append(f"{name}  ends at byte {size:,}, {tensor} at {stop:,}")
                    break
                if start < end:
                    problems.append(f"{name}  {before} and {tensor} share bytes")
                    break
                end, before = stop, tensor
        if problems:
            raise CheckpointError(
                f"{self.folder} does not hold what its .metadata names", problems=problems, hint=COPY_AGAIN
            )


def listing(metadata: Path, places: Mapping[str, Path] | None = None) -> str:
    """A digest of `.metadata`, and of the names and sizes of the files beside it.

    What this program writes names its content in `.metadata`. `places` says where files lie that have no
    names yet. Raises OSError.
    """
    found = places or {path.name: path for path in metadata.parent.glob(f"*{DISTCP}")}
    whole = hashlib.sha256(files.content((places or {}).get(metadata.name, metadata), MAX_METADATA))
    for name in sorted(name for name in found if name.endswith(DISTCP)):
        whole.update(f"{name} {os.path.getsize(found[name])}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a link leads elsewhere: not within the folder, nor within the cache of a hub that it is in."""
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    snapshots = [above for above in root.parents if above.name == "snapshots"]
    return not real.is_relative_to(snapshots[0].parent if snapshots else root)


def _read(path: Path) -> Inert:
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


def _tree(saved: Inert) -> tuple[dict[Any, Any], dict[Keys, _Stored]]:
    """What was saved, as nested dictionaries of tensors without values; and by its keys what each is."""
    fields = _fields(saved, "Metadata")
    listed = _mapping(fields.get("state_dict_metadata"), "state_dict_metadata")
    items = _items(_mapping(fields.get("storage_data"), "storage_data"))
    paths = fields.get("planner_data")
    paths = paths if isinstance(paths, dict) else {}
    reshaped = fields.get("mcore_data")
    reshaped = reshaped if isinstance(reshaped, dict) else {}
    nested = _nested(list(listed))
    tree: dict[Any, Any] = {}
    stored: dict[Keys, _Stored] = {}
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


def _tensor(name: str, what: Inert, items: Mapping[Any, tuple[str, int, int]]) -> _Stored:
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
        made.append(_Item(offsets, sizes, *where))
    if 0 not in shape:
        _check_tiling(name, shape, made)
    return _Stored(name, dtype, shape, tuple(sorted(made, key=lambda item: item.offsets)))


def _check_tiling(name: str, shape: tuple[int, ...], items: Sequence[_Item]) -> None:
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


def _of_pickle(
    path: Path, item: _Item, pickled: tuple[int, int], records: dict[str, tuple[int, int]], same: bool
) -> Piece | Tensor | None:
    """Where the values of an item of torch.save lie; the values where their bytes are in another order."""
    if pickled[1] > MAX_PICKLE:
        raise CheckpointError(f"{path}: byte {item.start:,} is no single tensor", hint=COPY_AGAIN)
    storages = Mapped(path, pickled, records, same)
    reader = Reader(KNOWN, storages.stored, size=pickled[1])
    try:
        with files.opened(path) as file:
            made = storages.read(Bounded(file, item.length), reader)
    except (*DAMAGED, UnpicklingError) as cause:
        raise CheckpointError(
            f"{path}: the item at byte {item.start:,} is damaged: {cause}"[:300], hint=COPY_AGAIN
        ) from cause
    if reader.unknown:
        raise UnsafeCheckpoint(
            f"{path}: the item at byte {item.start:,} is no plain tensor: "
            "reading it would run code, so it was not read",
            problems=[f"wants to import {name[:100]}" for name in sorted(reader.unknown)],
        )
    if not isinstance(made, Tensor):
        return None
    return Loaded(None, storages.places).piece(made.detach()) or made.detach()
