"""What a path is: one safetensors file, shards with an index, or a file of `torch.save`.

Its first bytes say so; its extension only decides what a damaged file was meant to be.
"""

from __future__ import annotations

import difflib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ..errors import CheckpointError
from . import torch_format
from .safetensors_format import COPY_AGAIN, MAX_HEADER

INDEX = ".safetensors.index.json"
PERMUTATION = ".perm.safetensors"
TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")

# What else arrives under a checkpoint's name, by its first bytes.
_OTHERS = {
    b"version https://git-lfs": ("a Git LFS pointer, not the weights", "Fetch them with: git lfs pull"),
    b"<": ("a web page or XML", "Download the file itself, not the page about it."),
    b"\x89HDF": ("an HDF5 file (Keras)", "Save the weights as safetensors where it was made."),
    b"GGUF": ("a GGUF file: quantised weights", "Use the original weights."),
    b"\x93NUMPY": ("a NumPy array", "Save the weights as safetensors where it was made."),
    b"\x1f\x8b": ("gzip-compressed", "Decompress it first."),
}


class ToCome(CheckpointError):
    """A file that is not made yet is asked for, see `to_come`."""


_to_come: frozenset[str] = frozenset()


@contextmanager
def to_come(paths: Iterable[Path]) -> Iterator[None]:
    """Within, whoever opens one of these gets ToCome, whatever lies there: they are still to be made.

    So a command can be judged as far as it can without them: all that it says before is of its options.
    """
    global _to_come
    before, _to_come = _to_come, frozenset(os.path.realpath(path) for path in paths)
    try:
        yield
    finally:
        _to_come = before


def locate(path: Path) -> tuple[str, Path]:
    """What is there ("safetensors", "sharded" or "torch"), and the file to read: an index where sharded.

    Raises CheckpointError where it is none of them, OSError where it cannot be read.
    """
    if _to_come and os.path.realpath(path) in _to_come:
        raise ToCome(f"{path} is still to be made")
    return _folder(path) if path.is_dir() else (_kind(path), path)


def _kind(path: Path) -> str:
    """ "safetensors", "sharded" (an index) or "torch"."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path} is not a regular file")
    if status.st_size == 0:
        raise CheckpointError(f"{path} is empty (0 bytes)", hint=COPY_AGAIN)
    with open(path, "rb") as file:
        head = file.read(64)
    if head.startswith(torch_format.ZIP):
        return "torch"
    # A header's length may look like the first bytes of a pickle, so a "{" where a header begins comes first.
    named_so = path.suffix == ".safetensors"
    fits = int.from_bytes(head[:8], "little") <= status.st_size - 8
    if head[8:9] == b"{" and (fits or named_so):
        return "safetensors"
    if torch_format.is_pickle(head):
        return "torch"
    for prefix, (what, hint) in _OTHERS.items():
        if head.lstrip().startswith(prefix):
            raise CheckpointError(f"{path} is no checkpoint: it is {what}", hint=hint)
    if named_so:
        return "safetensors"
    if path.suffix == ".json" or head.lstrip().startswith(b"{"):
        return "sharded"
    raise CheckpointError(
        f"{path} is no checkpoint: it begins with {head[:8]!r}",
        hint="Expected: a .safetensors file, a folder or an index of them, or a file written by torch.save.",
    )


def _missing(path: Path) -> CheckpointError:
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=3, cutoff=0.6)
    except OSError:
        return CheckpointError(f"{path}: no such file", hint=f"There is no folder {path.parent} either.")
    hint = f"Did you mean {' or '.join(str(path.parent / name) for name in near)}?" if near else None
    return CheckpointError(f"{path}: no such file", hint=hint)


def _folder(folder: Path) -> tuple[str, Path]:
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    indices = [name for name in names if name.endswith(INDEX)]
    # `align` writes its permutation beside the weights
    weights = [name for name in names if name.endswith(".safetensors") and not name.endswith(PERMUTATION)]
    found = indices or weights
    if len(found) == 1:
        return ("sharded" if indices else "safetensors"), folder / found[0]
    if found:
        raise CheckpointError(
            f"{folder} holds {len(found)} {'indices' if indices else '.safetensors files and no index'}",
            problems=found,
            hint=f"Name one of them, such as {folder / found[0]}.",
        )
    others = [name for name in names if name.endswith(TORCH_SUFFIXES)]
    raise CheckpointError(
        f"{folder} holds no weights: no .safetensors file and no *{INDEX}",
        hint=f"Did you mean {' or '.join(str(folder / name) for name in others[:3])}?" if others else None,
    )


def read_index(index: Path) -> dict[str, str]:
    """{tensor: file name}, every file in the folder of the index by its words; nothing else is opened."""
    if index.stat().st_size > MAX_HEADER:
        raise CheckpointError(f"{index}: an index of more than {MAX_HEADER:,} bytes")
    try:
        parsed = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{index} is not valid JSON: {cause}", hint=COPY_AGAIN) from cause
    shard_of = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(shard_of, dict) or not shard_of:
        raise CheckpointError(f"{index} is no index of shards: it has no weight_map of tensor names to files")
    if problems := sorted({repr(file) for file in shard_of.values() if _escapes(file)}):
        raise CheckpointError(
            f"{index} names files that are not .safetensors in its own folder", problems=problems
        )
    return shard_of


def _escapes(file: object) -> bool:
    # By its words alone: a shard may well be a link to elsewhere, as in a Hugging Face cache.
    if not isinstance(file, str) or "\\" in file or "\0" in file:
        return True
    parts = PurePosixPath(file)
    return parts.is_absolute() or ".." in parts.parts or parts.suffix != ".safetensors"
