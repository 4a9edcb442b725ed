"""Folders of torch.distributed.checkpoint (DCP): tensors in chunks, in one or several files.

    .metadata       a pickle: names, shapes, chunks; and of each chunk its file, first byte and length
    __0_0.distcp    items one after the other, each a small file of torch.save; or one file of safetensors
    __1_0.distcp …  what other ranks wrote

Both kinds of pickles are read as data (`inert.py`), `.metadata` in `distributed_metadata.py`. The weights
among all that is saved are found as in a torch file (`envelopes.py`).
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from ..errors import CheckpointError, UnsafeCheckpoint
from ..runtime import files
from . import distributed_metadata, envelopes
from .distributed_metadata import MAX_METADATA, Item, Stored
from .inert import Reader
from .pickled import KNOWN
from .pieces import DISTCP
from .safetensors_format import COPY_AGAIN, Entry, read_header
from .storages import Bounded, Mapped, check_zip
from .stored import Piece, StoredFile
from .torch_file import DAMAGED, ZIP, Loaded, TorchEntry

MAX_PICKLE = 1 << 20  # bytes of an item that say what its tensor is


class DistributedFolder:
    """The weights of one folder: `entries` by plain names, and `found`, which says where they were.

    Opening reads `.metadata` and looks that all chunks are there: they fill every tensor, each value once.
    Raises CheckpointError, UnsafeCheckpoint where a name is not one that such a pickle needs, UsageError for
    a `key` that is not there.
    """

    def __init__(self, metadata: Path, key: str | None = None):
        self.folder = metadata.parent
        tree, stored = distributed_metadata.read(metadata)
        found = envelopes.find(tree, key=key, name=str(self.folder))
        self._stored = {name: stored[found.places[name]] for name in found.tensors}
        self.found = replace(found, tensors={}, places={})
        self.entries = {name: TorchEntry(its.dtype, its.shape) for name, its in self._stored.items()}
        self._files: dict[str, StoredFile] = {}
        self._of_safetensors: dict[str, dict[str, Entry]] = {}
        self._pieces: dict[tuple[str, Item], Piece | Tensor] = {}
        self._alike: dict[tuple[bytes, str, int], Piece] = {}  # by pickle and record, from its first byte on
        self._last: tuple[Item, Tensor] | None = None  # does not lie row by row, and is asked for in parts
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

    def _kept(self, its: Stored, item: Item) -> Tensor:
        """A chunk that does not lie row by row, read once for all its rows."""
        if self._last is None or self._last[0] is not item:
            self._last = None
            self._last = item, self._whole(its, item)
        return self._last[1]

    def _whole(self, its: Stored, item: Item) -> Tensor:
        piece = self._piece(its, item)
        return piece if isinstance(piece, Tensor) else self._files[item.file].tensor(piece)

    def _piece(self, its: Stored, item: Item) -> Piece | Tensor:
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

    def _of_torch(self, path: Path, item: Item) -> Piece | Tensor | None:
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


def _of_pickle(
    path: Path, item: Item, pickled: tuple[int, int], records: dict[str, tuple[int, int]], same: bool
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
