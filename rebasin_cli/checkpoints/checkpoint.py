"""Files to named tensors: lazily, and without running what a file may hold.

    open_checkpoint("a.pt")                 torch.save, in whatever envelope
    open_checkpoint("b.safetensors")
    open_checkpoint("llama/")               a folder with an index and its shards, or with one .safetensors

`locate` says what a path is, `torch_format` and `safetensors_format` read it, `envelopes` finds the
weights in what a torch file holds.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, NoEnvelope, UsageError
from . import envelopes, torch_format
from .checking import digest, validate
from .inert import kind
from .locate import locate, read_index
from .opening import Strange
from .safetensors_format import COPY_AGAIN, SafetensorsFile
from .stored import Piece, StoredFile

__all__ = ["Checkpoint", "digest", "open_checkpoint", "validate"]

MAX_REPEATED = 1 << 30  # bytes that the tensors of a file may claim beyond those stored


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoint(Mapping[str, Tensor]):
    """Named tensors of one file (or folder of shards), each read when it is asked for.

    `checkpoint[name]` reads the tensor from the file, each time anew: keep what is needed more than once, or
    the whole with `tensors.held`. Raises CheckpointError where the file has changed since it was opened. Take
    a tensor as read-only: one of an old torch file is in memory for all. Names come in the file's order,
    without the prefixes of wrappers.
    """

    path: Path
    format: str  # "safetensors", "sharded" or "torch"
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    read: Callable[[str], Tensor]
    read_rows: Callable[[str, int, int], Tensor]  # a part of the first axis
    metadata: dict[str, str] = field(default_factory=dict)  # empty for torch files
    envelope: str = ""  # the dotted path to the state dict, such as "ema.shadow"; "" where there is none
    alternatives: tuple[str, ...] = ()  # other state dicts in the file, for --key
    stripped: tuple[str, ...] = ()  # prefixes taken off the names: ("module.",)
    skipped: dict[str, str] = field(default_factory=dict)  # what is no tensor of the model: name → what it is
    tied: tuple[tuple[str, ...], ...] = ()  # groups of names that share one piece of memory
    unread: tuple[str, ...] = ()  # objects beside the weights that need code of their own, and their classes

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name)  # KeyError for a name that is not there

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """A part of one tensor's first axis, read without the rest where the file allows it."""
        return self.read_rows(name, start, stop)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes  # the inherited one would read the tensor

    __eq__, __hash__ = object.__eq__, object.__hash__  # a mapping's would compare tensors

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path}: {len(self)} tensors, {self.format}>"

    def digest(self) -> str:
        """SHA-256 of the content: the same for the same tensors in another format. Read once, then known."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        return digest(self)

    def look(self, *, name: str = "") -> None:
        """`validate` it, and know its digest from then on: both in one reading."""
        self.__dict__["_digest"] = validate(self, name=name, digested=True)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen or left out on opening, a sentence each."""
        notes = []
        if self.envelope:
            notes.append(f"the weights are those under {self.envelope!r}")
        if self.alternatives:
            notes.append(f"also there, for --key: {', '.join(self.alternatives)}")
        if self.stripped:
            notes.append(f"stripped from names: {', '.join(self.stripped)}")
        if self.skipped:
            notes.append(f"left out: {', '.join(f'{name} ({what})' for name, what in self.skipped.items())}")
        if self.tied:
            notes.append(f"tied: {'; '.join(' = '.join(group) for group in self.tied)}")
        if self.unread:
            more = f" and {len(self.unread) - 5} more" if len(self.unread) > 5 else ""
            notes.append(f"not read: {', '.join(self.unread[:5])}{more}")
        return tuple(notes)


def open_checkpoint(
    path: str | os.PathLike[str], *, key: str | None = None, unsafe_load: bool = False
) -> Checkpoint:
    """The tensors in a file or folder; no values are read yet.

    `key` names the state dict inside a torch file ("ema", "ema.shadow"); without it the first of
    `envelopes.ENVELOPES` is taken. Only with `unsafe_load` may a pickle run its code, and only where
    the file cannot be read without. Wrong values (NaN) and quantised weights are `validate`'s to find.

    Raises CheckpointError, UnsafeCheckpoint; UsageError for a `key` that the file does not have, NoEnvelope
    where there is nothing to choose from.
    """
    path = Path(path)
    try:
        kind, file = locate(path)
        if kind == "torch":
            return _open_torch(path, key, unsafe_load)
        if key:
            raise NoEnvelope(
                f"{path} holds safetensors: there is nothing to choose with --key", hint="Drop --key."
            )
        return _open_index(path, file) if kind == "sharded" else _open_safetensors(path, file)
    except OSError as cause:
        raise CheckpointError(f"{path} cannot be read: {cause.strerror or cause}") from cause


def _open_safetensors(path: Path, inside: Path) -> Checkpoint:
    file = SafetensorsFile(inside)
    return _checkpoint(
        path, "safetensors", dict.fromkeys(file.entries, file), skipped={}, metadata=file.metadata
    )


def _open_index(path: Path, index: Path) -> Checkpoint:
    """The tensors that the index names, each in the shard that it names; other files are not touched."""
    shard_of = read_index(index)
    files, problems = {}, []
    for shard in sorted(set(shard_of.values())):
        if (index.parent / shard).is_file():
            files[shard] = SafetensorsFile(index.parent / shard)
        else:
            problems.append(f"{shard}  is missing")
    for name, shard in shard_of.items():
        if shard in files and name not in files[shard].entries:
            problems.append(f"{name}  is not in {shard}")
    if problems:
        raise CheckpointError(f"{index} does not fit the files beside it", problems=problems, hint=COPY_AGAIN)
    skipped = {
        name: f"in {shard}, not in the index"
        for shard, file in files.items()
        for name in file.entries
        if name not in shard_of
    }
    common = set.intersection(*(set(file.metadata.items()) for file in files.values()))
    source = {name: files[shard] for name, shard in shard_of.items()}
    return _checkpoint(path, "sharded", source, skipped=skipped, metadata=dict(sorted(common)))


def _checkpoint(
    path: Path,
    format: str,
    source: Mapping[str, SafetensorsFile],
    *,
    skipped: dict[str, str],
    metadata: dict[str, str],
) -> Checkpoint:
    if not source:
        raise CheckpointError(f"{path} holds no tensors")
    names, stripped, left_out = _plain(source, lightning=False, path=path)
    entries = {name: source[stored].entries[stored] for name, stored in names.items()}
    return Checkpoint(
        path=path,
        format=format,
        shapes={name: entry.shape for name, entry in entries.items()},
        dtypes={name: entry.dtype for name, entry in entries.items()},
        read=lambda name: source[names[name]].tensor(names[name]),
        read_rows=lambda name, start, stop: source[names[name]].rows(names[name], start, stop),
        metadata=metadata,
        stripped=stripped,
        skipped=skipped | left_out,
    )


def _plain(
    stored: Mapping[str, Any], *, lightning: bool, path: Path
) -> tuple[dict[str, str], tuple[str, ...], dict]:
    """{plain name: stored name}, the prefixes that went, and what is left out."""
    plain, stripped = envelopes.plain_names(stored, lightning=lightning, name=str(path))
    left_out = {name: "the counter of an averaged model" for name in stored if name not in plain}
    return {name: stored for stored, name in plain.items()}, stripped, left_out


def _open_torch(path: Path, key: str | None, unsafe_load: bool) -> Checkpoint:
    """Without its code first, also where that may be run."""
    file = StoredFile(path)
    loaded = None
    try:
        loaded = torch_format.load(path)
        return _weights(path, file, loaded, key)
    except (CheckpointError, UsageError):
        if not unsafe_load or (loaded and not loaded.wanted):
            raise
    return _weights(path, file, torch_format.load_by_its_code(path), key)


def _weights(path: Path, file: StoredFile, loaded: torch_format.Loaded, key: str | None) -> Checkpoint:
    try:
        found = envelopes.find(loaded.saved, key=key, name=str(path))
    except CheckpointError:
        if key is None and (hidden := [str(one) for one in loaded.unread if one.tensors]):
            raise torch_format.unsafe(path, loaded, hidden) from None
        raise
    _check_unread(path, found, loaded, key)
    saved = {
        name: value
        for name, value in found.tensors.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }
    skipped = {str(name): kind(value) for name, value in found.tensors.items() if name not in saved}
    _check_storage(saved, path)
    saved = {name: value.detach() for name, value in saved.items()}
    shown = {f"{found.envelope}.{name}".removeprefix(".") for name in skipped}  # and need not be told twice
    names, stripped, left_out = _plain(saved, lightning=found.lightning, path=path)
    tensors = {name: saved[stored] for name, stored in names.items()}
    reader = _TorchTensors(file, {name: loaded.piece(tensor) or tensor for name, tensor in tensors.items()})
    return Checkpoint(
        path=path,
        format="torch",
        shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()},
        dtypes={name: tensor.dtype for name, tensor in tensors.items()},
        read=reader.tensor,
        read_rows=reader.rows,
        envelope=found.envelope,
        alternatives=found.alternatives,
        stripped=stripped,
        skipped=skipped | left_out,
        tied=_tied(tensors),
        unread=tuple(str(one) for one in loaded.unread if ".".join(one.path) not in shown),
    )


def _check_unread(path: Path, found: envelopes.Found, loaded: torch_format.Loaded, key: str | None) -> None:
    """Refuse weights that only code of the file can tell: of other classes, or of a network of its own kind.

    Raises UnsafeCheckpoint.
    """
    strange = {name: value for name, value in found.tensors.items() if isinstance(value, Strange)}
    if problems := [f"{name}  {value.what}" for name, value in strange.items() if value.needs_code]:
        raise torch_format.unsafe(path, loaded, problems)
    first = found.envelope.partition(".")[0]
    better = envelopes.ENVELOPES[: envelopes.ENVELOPES.index(first) if first in envelopes.ENVELOPES else None]
    if key is None and (
        hidden := [one for one in loaded.unread if one.tensors and one.path[:1] and one.path[0] in better]
    ):
        raise torch_format.unsafe(path, loaded, [str(one) for one in hidden])


@dataclass
class _TorchTensors:
    """Tensors of a torch file: pieces of it, or what is in memory."""

    file: StoredFile
    kept: Mapping[str, Piece | Tensor]
    last: tuple[str, Tensor] | None = None  # one that does not lie row by row, and is asked for in parts

    def tensor(self, name: str) -> Tensor:
        kept = self.kept[name]
        return kept if isinstance(kept, Tensor) else self.file.tensor(kept)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        kept = self.kept[name]
        if isinstance(kept, Piece) and kept.in_rows:
            return self.file.tensor(kept.rows(start, stop))
        last = self.last
        if last is None or last[0] != name:
            self.last = None
            last = self.last = name, self.tensor(name)
        return last[1][start:stop]


def _check_storage(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors without plain values, and those that repeat few stored values without end."""
    problems, repeated = [], 0
    for name, tensor in tensors.items():
        if isinstance(tensor, Strange):
            problems.append(f"{name}  {tensor.what}")
            continue
        if tensor.is_nested:
            problems.append(f"{name}  is nested: its parts have shapes of their own")
            continue
        if tensor.layout is not torch.strided:
            problems.append(f"{name}  is sparse: save it with .to_dense()")
            continue
        if tensor.device.type != "cpu":
            problems.append(f"{name}  has no values: it was saved from the device {tensor.device.type!r}")
            continue
        claimed = tensor.numel() * tensor.element_size()  # a stride of 0 repeats values, within reason
        repeated += max(0, claimed - tensor.untyped_storage().nbytes())
        if repeated > MAX_REPEATED:
            problems.append(f"{name}  claims {claimed:,} bytes, far more than are stored")
    if problems:
        raise CheckpointError(f"{path} cannot be used", problems=problems)


def _tied(tensors: Mapping[str, Tensor]) -> tuple[tuple[str, ...], ...]:
    groups: dict[tuple, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():  # empty tensors all lie at address 0
            where = (tensor.untyped_storage().data_ptr(), tensor.storage_offset())
            groups.setdefault((*where, tensor.shape, tensor.stride(), tensor.dtype), []).append(name)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
