"""Files to named tensors: lazily, and without running what a file may hold.

    open_checkpoint("a.pt")                 torch.save, in whatever envelope
    open_checkpoint("b.safetensors")
    open_checkpoint("llama/")               a folder with shards, or with one file of weights

`locate` says what a path is, `torch_file` and `safetensors_format` read it, `envelopes` finds the
weights in what a torch file holds.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, NoEnvelope
from ..runtime.memory import uncollected
from ..runtime.text import some
from . import distributed, pieces, torch_writer
from .around import Around, Slot, fitted
from .distributed import DistributedFolder
from .folder import check_alone
from .locate import kind_of_file, locate, read_index
from .safetensors_format import COPY_AGAIN, SafetensorsFile
from .torch_file import Shard, TorchFile
from .validation import digest, validate
from .wrappers import plain_names

__all__ = ["Checkpoint", "digest", "open_checkpoint", "validate"]

SHOWN = 8  # names in a note of what was left out, or of what was joined


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoint(Mapping[str, Tensor]):
    """Named tensors of one file (or folder of shards), each read when it is asked for.

    `checkpoint[name]` reads the tensor from the file, each time anew: keep what is needed more than once, or
    the whole with `tensors.held`. Raises CheckpointError where the file has changed since it was opened. Take
    a tensor as read-only: one of an old torch file is in memory for all. Names come in the file's order,
    without the prefixes of wrappers.
    """

    path: Path
    format: str  # "safetensors", "sharded", "torch" or "dcp"
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    read: Callable[[str], Tensor]
    read_rows: Callable[[str, int, int], Tensor]  # a part of the first axis
    metadata: dict[str, str] = field(default_factory=dict)  # of torch files, what `beside` holds
    envelope: str = ""  # the dotted path to the state dict, such as "ema.shadow"; "" where there is none
    parts: dict[str, int] = field(default_factory=dict)  # where several were joined: how many values each has
    places: dict[str, tuple[Any, ...]] = field(
        default_factory=dict
    )  # of a torch file: the keys to each tensor
    alternatives: tuple[str, ...] = ()  # copies of the model in the file, for --key
    stripped: tuple[str, ...] = ()  # prefixes taken off the names: ("module.",)
    skipped: dict[str, str] = field(default_factory=dict)  # what is no tensor of the model: name → what it is
    tied: tuple[tuple[str, ...], ...] = ()  # groups of names that share one piece of memory
    unread: tuple[str, ...] = ()  # objects beside the weights that need code of their own, and their classes
    around: Around | None = None  # of a torch file: its envelope
    stale: str = ""  # why metadata beside it is not used
    source: Checkpoint | None = None  # the same with the names that the file has, where these are others

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
        return digest(self) if self.source is None else self.source.digest()

    def look(self, *, name: str = "") -> None:
        """`validate` it, and know its digest from then on: both in one reading."""
        if self.source is None:
            self.__dict__["_digest"] = validate(self, name=name, digested=True)
        else:
            self.source.look(name=name)

    def know(self, digest: str) -> None:
        """Take this `digest`, which another process has read, for known."""
        (self.source or self).__dict__["_digest"] = digest

    def under(self, names: Mapping[str, str]) -> Checkpoint:
        """The same file with its tensors under other names, new → old; its digest stays.

        A tensor may have two: these are tied.
        """
        new_of: dict[str, list[str]] = {}
        for new, old in names.items():
            new_of.setdefault(old, []).append(new)
        groups = [*self.tied, *((old,) for old in new_of if not any(old in group for group in self.tied))]
        tied = (tuple(new for old in group for new in new_of.get(old, ())) for group in groups)
        return replace(
            self,
            shapes={new: self.shapes[old] for new, old in names.items()},
            dtypes={new: self.dtypes[old] for new, old in names.items()},
            places={new: self.places[old] for new, old in names.items() if old in self.places},
            read=lambda name: self.read(names[name]),
            read_rows=lambda name, start, stop: self.read_rows(names[name], start, stop),
            tied=tuple(group for group in tied if len(group) > 1),
            source=self.source or self,
        )

    @property
    def provenance(self) -> dict[str, str] | None:
        """What we wrote into its metadata of its making; None where there is nothing."""
        ours = {key: value for key, value in sorted(self.metadata.items()) if key.startswith("rebasin.")}
        return ours or None

    @property
    def knows_ties(self) -> bool:
        """Whether `tied` are all ties that there are: formats other than torch's store each name apart."""
        return self.format == "torch"

    @property
    def beside(self) -> dict[str, Any]:
        """Plain values that lie beside the weights of a torch file: settings, and how far training was."""
        return {} if self.around is None else self.around.beside

    def envelope_of(self, names: Collection[str]) -> tuple[Any, tuple[str, ...]]:
        """What these tensors are put into where they are written as this file is: `torch_writer.write`.

        Of a file that is no torch file, and where some have no place in it, that is the names alone. Second
        are the names of those.
        """
        bare = {name: Slot(name) for name in names}
        if self.around is None:
            return bare, ()
        old_of = {path: old for old, path in (self.source or self).places.items()}
        now = {old_of[path]: new for new, path in self.places.items()}
        tree, homeless = fitted(self.around.tree, names, now)
        return bare if homeless else tree, homeless

    @property
    def largest_part(self) -> str | None:
        """The part of several that has most values; None where none were joined."""
        return max(sorted(self.parts), key=self.parts.__getitem__, default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen or left out on opening, a sentence each."""
        notes = []
        if self.envelope:
            notes.append(f"the weights are those under {self.envelope!r}")
        if self.parts:
            joined = some((f"{part} ({count:,} values)" for part, count in sorted(self.parts.items())), SHOWN)
            notes.append(
                f"parts joined under their names: {joined}; --key chooses, such as --key {self.largest_part}"
            )
        if self.alternatives:
            notes.append(f"also there, for --key: {', '.join(self.alternatives)}")
        if self.stripped:
            notes.append(f"stripped from names: {', '.join(self.stripped)}")
        if left := [f"{name} ({what})" for name, what in self.skipped.items() if self._is_left_out(name)]:
            notes.append(f"left out: {some(left, SHOWN)}")
        if read := [name for name in self.skipped if not self._is_left_out(name)]:
            notes.append(f"plain values beside the weights: {some(read, SHOWN)}")
        if self.tied:
            notes.append(f"tied: {'; '.join(' = '.join(group) for group in self.tied)}")
        if self.unread:
            notes.append(f"not read: {some(self.unread, 5)}")
        notes += [self.stale] if self.stale else []
        return tuple(notes)

    def _is_left_out(self, name: str) -> bool:
        """Whether what lies beside the weights is in no envelope that is written with them."""
        if self.around is None:
            return True
        words = name.split(".")
        return any(".".join(words[:end]) in self.around.left_out for end in range(len(words), 0, -1))


def open_checkpoint(
    path: str | os.PathLike[str], *, key: str | None = None, unsafe_load: bool = False
) -> Checkpoint:
    """The tensors in a file or folder; no values are read yet.

    `key` names what to take of a torch file ("ema", "ema.shadow", "generator,critic"). Without it that is
    all that can be weights, but for copies of them: one state dict, in whatever envelope, or several parts
    joined under dotted names. Only with `unsafe_load` may a pickle run its code, and only where the file
    cannot be read without. Wrong values (NaN) and quantised weights are `validate`'s to find.

    Raises CheckpointError, for a piece of a model as well, UnsafeCheckpoint; UsageError for a `key` that the
    file does not have, NoEnvelope where there is nothing to choose from.
    """
    path = Path(path)
    try:
        with uncollected():
            kind, file = locate(path)
            if kind == "torch":
                return _open_torch(path, file, key, unsafe_load)
            if kind == pieces.DCP:
                metadata, stale = torch_writer.read(file, distributed.listing)
                found = _of_envelope(path, pieces.DCP, DistributedFolder(file, key))
                return replace(found, metadata=metadata, stale=stale)
            if key:
                raise NoEnvelope(
                    f"{path} holds safetensors: there is nothing to choose with --key", hint="Drop --key."
                )
            return (
                _open_shards(path, file, unsafe_load) if kind == "sharded" else _open_safetensors(path, file)
            )
    except OSError as cause:
        raise CheckpointError(f"{path} cannot be read: {cause.strerror or cause}") from cause


def _open_safetensors(path: Path, inside: Path) -> Checkpoint:
    file = SafetensorsFile(inside)
    return _checkpoint(path, "safetensors", dict.fromkeys(file.entries, file), metadata=file.metadata)


def _open_shards(path: Path, index: Path, unsafe_load: bool) -> Checkpoint:
    """The tensors that the index names, each in the shard that it names; other files are not touched."""
    shard_of = read_index(index)
    if path != index:
        check_alone(path, index, set(shard_of.values()))
    files: dict[str, SafetensorsFile | Shard] = {}
    problems = []
    for shard in sorted(set(shard_of.values())):
        file = index.parent / shard
        if not file.is_file():
            problems.append(f"{shard}  is {'a link that leads nowhere' if file.is_symlink() else 'missing'}")
        elif (kind := kind_of_file(file)) == "sharded":
            problems.append(f"{shard}  is an index itself")
        else:
            files[shard] = Shard(file, unsafe_load) if kind == "torch" else SafetensorsFile(file)
    for name, shard in shard_of.items():
        if shard in files and name not in files[shard].entries:
            problems.append(f"{name}  is not in {shard}")
    hint = COPY_AGAIN
    for shard, its in files.items() if not problems else ():  # the whole is more than a part of it
        tied = its.tied if isinstance(its, Shard) else ()
        known = {name for group in tied if not shard_of.keys().isdisjoint(group) for name in group}
        alone = (name for name in its.entries if name not in shard_of and name not in known)
        problems += [f"{name}  is in {shard}, and not in the index" for name in alone]
        hint = "Write an index of all tensors, or of files that hold no others."
    if problems:
        raise CheckpointError(f"{index} does not fit the files beside it", problems=problems, hint=hint)
    common = set.intersection(*(set(file.metadata.items()) for file in files.values()))
    source = {name: files[shard] for name, shard in shard_of.items()}
    ties = [group for file in files.values() if isinstance(file, Shard) for group in file.tied]
    return _checkpoint(path, "sharded", source, metadata=dict(sorted(common)), tied=ties)


def _checkpoint(
    path: Path,
    format: str,
    source: Mapping[str, SafetensorsFile | Shard],
    *,
    metadata: dict[str, str],
    tied: Sequence[tuple[str, ...]] = (),
) -> Checkpoint:
    if not source:
        raise CheckpointError(f"{path} holds no tensors")
    names, stripped, left_out = _plain(source, path)
    entries = {name: source[stored].entries[stored] for name, stored in names.items()}
    pieces.check_values(path, {name: entry.shape for name, entry in entries.items()})
    plain = {stored: name for name, stored in names.items()}
    groups = [tuple(plain[stored] for stored in group if stored in plain) for group in tied]
    return Checkpoint(
        path=path,
        format=format,
        shapes={name: entry.shape for name, entry in entries.items()},
        dtypes={name: entry.dtype for name, entry in entries.items()},
        read=lambda name: source[names[name]].tensor(names[name]),
        read_rows=lambda name, start, stop: source[names[name]].rows(names[name], start, stop),
        metadata=metadata,
        stripped=stripped,
        skipped=left_out,
        tied=tuple(group for group in groups if len(group) > 1),
    )


def _plain(stored: Mapping[str, Any], path: Path) -> tuple[dict[str, str], tuple[str, ...], dict[str, str]]:
    """{plain name: stored name}, the prefixes that went, and what is left out."""
    plain, stripped = plain_names(stored, lightning=False, name=str(path))
    left_out = {name: "the counter of an averaged model" for name in stored if name not in plain}
    return {name: stored for stored, name in plain.items()}, stripped, left_out


def _open_torch(path: Path, inside: Path, key: str | None, unsafe_load: bool) -> Checkpoint:
    file = TorchFile(inside, key, unsafe_load)
    metadata, stale = torch_writer.read(inside)
    return replace(
        _of_envelope(path, "torch", file),
        places=file.found.places,
        tied=file.tied,
        unread=file.unread,
        around=file.around,
        metadata=metadata,
        stale=stale,
    )


def _of_envelope(path: Path, format: str, file: TorchFile | DistributedFolder) -> Checkpoint:
    shapes = {name: entry.shape for name, entry in file.entries.items()}
    pieces.check_values(path, shapes)
    return Checkpoint(
        path=path,
        format=format,
        shapes=shapes,
        dtypes={name: entry.dtype for name, entry in file.entries.items()},
        read=file.tensor,
        read_rows=file.rows,
        envelope=file.found.envelope,
        parts=file.found.parts,
        alternatives=file.found.alternatives,
        stripped=file.found.stripped,
        skipped=file.found.skipped,
    )
