"""What a path is: one safetensors file, shards with an index or without, or a file of `torch.save`.

Its first bytes say so; its extension only decides what a damaged file was meant to be. A file that is a piece
of a model is no model.
"""

from __future__ import annotations

import difflib
import json
import os
import stat
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError
from ..runtime import files
from ..runtime.files import TORCH_SUFFIXES
from ..runtime.text import once
from . import foreign, pieces, torch_file
from .folder import INDEX, PERMUTATION, check_named, in_folder, is_model, shards_of
from .safetensors_format import COPY_AGAIN, MAX_HEADER
from .two_formats import names_in

__all__ = [
    "INDEX",
    "PERMUTATION",
    "TORCH_SUFFIXES",
    "ToCome",
    "check_made",
    "locate",
    "read_index",
    "to_come",
]


SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
BOM = b"\xef\xbb\xbf"


class ToCome(CheckpointError):
    """A file that is not made yet is asked for, see `to_come`."""


_to_come: Collection[str] = ()


@contextmanager
def to_come(places: Set[str]) -> Iterator[None]:
    """Within, whoever opens one of these real paths gets ToCome, whatever lies there: still to be made.

    So a command can be judged as far as it can without them: all that it says before is of its options.
    """
    global _to_come
    before, _to_come = _to_come, places
    try:
        yield
    finally:
        _to_come = before


def check_made(path: Path) -> None:
    """Raise ToCome for what is still `to_come`."""
    if _to_come and os.path.realpath(path) in _to_come:
        raise ToCome(f"{path} is still to be made")


def locate(path: Path) -> tuple[str, Path]:
    """What is there ("safetensors", "sharded", "torch" or "dcp"), and the file to read.

    Of a folder of DCP that is its metadata. Where it is sharded it is the index, or the first of shards that
    have none: `read_index` knows both.
    Raises CheckpointError where it is none of them or a piece of a model, OSError where it cannot be read.
    """
    check_made(path)
    if path.is_dir():
        kind, file = in_folder(path)
        if kind not in ("sharded", pieces.DCP):
            kind = kind_of_file(file)
        return kind, file
    kind = kind_of_file(path)
    if kind != "sharded" and (wrong := _piece(path)):
        raise wrong
    return kind, path


def _piece(path: Path) -> CheckpointError | None:
    """Asked first without the names beside it: few files are called so that these matter."""
    if pieces.suspicious(path.name):
        return pieces.of(path.parent, path.name, os.listdir(path.parent))
    return None


def kind_of_file(path: Path) -> str:
    """ "safetensors", "sharded" (an index) or "torch"."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path} is not a regular file")
    if status.st_size == 0:
        raise CheckpointError(f"{path} is empty (0 bytes)", hint=COPY_AGAIN)
    if pieces.is_distributed(path.name):
        raise pieces.distributed(path, path.parent)
    with files.opened(path) as file:
        head = file.read(512)
    if head.startswith(torch_file.ZIP):
        if path.suffix not in TORCH_SUFFIXES and (other := foreign.of_zip(path)):
            raise other
        return "torch"
    # A header's length may look like the first bytes of a pickle, so a "{" where a header begins comes first.
    named_so = path.suffix == ".safetensors"
    fits = int.from_bytes(head[:8], "little") <= status.st_size - 8
    if head[8:9] == b"{" and (fits or named_so):
        return "safetensors"
    if torch_file.is_pickle(head):
        return "torch"
    if other := foreign.of_head(path, head):
        raise other
    if named_so:
        return "safetensors"
    if path.suffix == ".json" or head.removeprefix(BOM).lstrip().startswith(b"{"):
        return "sharded"
    raise CheckpointError(
        f"{path} is no checkpoint: it begins with {head[:8]!r}",
        hint="Expected: a .safetensors file, a folder or an index of them, or a file written by torch.save.",
    )


def _missing(path: Path) -> CheckpointError:
    if os.path.islink(path):
        return CheckpointError(
            f"{path} is a link to {os.readlink(path)}, which is not there",
            hint="Get that file again (of a cache: download the model again), or name another one.",
        )
    try:
        names = [name for name in os.listdir(path.parent) if is_model(path.parent, name)]
    except OSError:
        return CheckpointError(f"{path}: no such file", hint=f"There is no folder {path.parent} either.")
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(str(path.parent / name) for name in near)}?" if near else None
    return CheckpointError(f"{path}: no such file", hint=hint)


def read_index(index: Path) -> dict[str, str]:
    """{tensor: file name}, every file in the folder of the index by its words; nothing else is opened.

    Of the first of shards that have no index, it is what their headers say.
    """
    if pieces.SHARD.fullmatch(index.name):
        return _of_headers(index)
    try:
        content = files.text(index, str(index), most=MAX_HEADER, error=CheckpointError)
        parsed = json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{index} is not valid JSON: {cause}", hint=COPY_AGAIN) from cause
    shard_of = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(shard_of, dict) or not shard_of:
        raise CheckpointError(f"{index} is no index of shards: it has no weight_map of tensor names to files")
    if problems := sorted({repr(file) for file in shard_of.values() if pieces.escapes(file, SUFFIXES)}):
        raise CheckpointError(f"{index} names files that are no weights in its own folder", problems=problems)
    check_named(index, shard_of.values())
    return shard_of


def _of_headers(first: Path) -> dict[str, str]:
    shard_of: dict[str, str] = {}
    twice = []
    for path in shards_of(first):
        kind_of_file(path)  # or what is wrong with it
        names = names_in(path)
        twice += [f"{name}  is in {shard_of[name]} and in {path.name}" for name in names if name in shard_of]
        shard_of |= dict.fromkeys(names, path.name)
    if twice:
        raise CheckpointError(
            f"{first.parent} holds shards with tensors of the same names, and no index says which counts",
            problems=twice,
            hint="Save the whole model anew where it was made: these may be pieces cut within the tensors.",
        )
    return shard_of
