"""Where an output may be written: asked before the work begins, raised as what the user can change."""

from __future__ import annotations

import glob
import os
import shlex
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from ..errors import OutputExists, ResourceError, UsageError
from ..runtime import files
from ..runtime.files import NOTHING, Inputs
from .disk import disk, probe, recover
from .folder import PERMUTATION
from .locate import TORCH_SUFFIXES
from .pieces import DISTCP

SUFFIX = ".safetensors"


def check_output(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    text: bool = False,
    layout: Mapping[str, str] | None = None,
    inputs: Inputs = NOTHING,
    suffixes: Collection[str] = (SUFFIX,),
) -> Path:
    """Whether `path` can be written, asked before the work begins, by a command that reads `inputs`.

    Raises OutputExists without `force` where the file is there, or (weights, not `text`) its index or shards:
    one form would shadow the other. UsageError where weights would have none of these `suffixes`, and where
    nothing may be written (`files.check_output`); ResourceError where the folder is missing or not writable.
    """
    path = Path(path)
    if path.is_dir() and not text:
        raise UsageError(
            f"{path} is a folder, not a file", hint=f"Name a file in it: {path / f'merged{SUFFIX}'}"
        )
    files.check_output(path, inputs, weights=not text)
    if not text and path.suffix not in suffixes:
        bare, of_torch = _without_suffix(path)
        if len(suffixes) == 1:
            raise UsageError(f"{path}: this is written as safetensors", hint=f"Use {bare}{SUFFIX}.")
        others = ", ".join(suffix for suffix in TORCH_SUFFIXES if suffix != of_torch)
        raise UsageError(
            f"{path}: weights are written as safetensors, or as torch.save does",
            hint=f"Use {bare}{SUFFIX}, or {bare}{of_torch} for a file of torch.save ({others} are, too).",
        )
    recover(path.parent)  # what a run left that was killed while it renamed
    there = [path] * path.exists() if text or path.suffix != SUFFIX else earlier(path, layout)
    for file in there:  # they give way, too
        files.check_output(file, inputs, weights=not text)
    if there and not force:
        raise OutputExists(f"{there[0]} exists", hint="Overwrite it with --force, or choose another name.")
    _check_folder(path.parent)
    return path


def _without_suffix(path: Path) -> tuple[Path, str]:
    """A name that was meant to end as weights do, without that end; and the suffix for a file of torch.save.

    X.PTH is one, x.pth.tar, which is no archive, and x.pth.gz; whatever else stays as it is.
    """
    for bare in (path, path.with_suffix("")):
        if (suffix := bare.suffix.lower()) in (SUFFIX, *TORCH_SUFFIXES):
            return bare.with_suffix(""), suffix if suffix in TORCH_SUFFIXES else ".pth"
    return path, ".pth"


def check_report_folder(folder: Path) -> None:
    """Whether a folder is there or can be made: raises UsageError for a file, ResourceError otherwise."""
    if os.path.lexists(folder) and not folder.is_dir():
        what = "a link to nothing" if folder.is_symlink() else "a file"
        raise UsageError(f"{folder} is {what}, not a folder")
    there = folder if folder.exists() else existing(folder)
    recover(there)
    _check_folder(there)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents where they are missing. Raises ResourceError."""
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)


def earlier(path: Path, layout: Mapping[str, str] | None = None) -> list[Path]:
    """What an earlier output under this name left, in either form: the file, an index, its shards."""
    shards = {*path.parent.glob(f"{glob.escape(path.stem)}-?????-of-?????{SUFFIX}")}
    shards |= {path.with_name(name) for name in (layout or {}).values()}
    return [there for there in (path, index_of(path), *sorted(shards - {path})) if there.is_file()]


def check_distributed(path: Path, *, force: bool, inputs: Inputs) -> None:
    """Whether a folder of DCP can be written, whose `.metadata` this path is. Raises as `check_output`."""
    files.check_output(path, inputs, weights=True)
    check_output(path, force=force, text=True, inputs=inputs)
    there = earlier_distributed(path)
    for file in there:
        files.check_output(file, inputs, weights=True)
    if there and not force:
        raise OutputExists(f"{there[0]} exists", hint="Overwrite it with --force, or choose another name.")
    others = [name for name in sorted(os.listdir(path.parent)) if name.endswith((SUFFIX, *TORCH_SUFFIXES))]
    if others := [name for name in others if not name.endswith(PERMUTATION)]:
        raise UsageError(
            f"{path.parent} holds weights in another form, which would be read instead",
            problems=others,
            hint="Name another folder.",
        )


def earlier_distributed(path: Path) -> list[Path]:
    """What an earlier run left in the folder of this `.metadata`: also files of ranks that are no more."""
    return [there for there in (path, *sorted(path.parent.glob(f"*{DISTCP}"))) if os.path.lexists(there)]


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        there = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
        if not there.is_dir():
            raise ResourceError(f"{there} is no folder", hint="Choose another place for the output")
        raise ResourceError(
            f"{folder}: no such folder", hint=f"Make it first: mkdir -p {shlex.quote(str(folder))}"
        )
    probe(folder)  # by trying: permission bits say nothing about a read-only disk, and nothing to root


def check_space(folder: Path, needed: int) -> None:
    """Raise ResourceError where the disk of this folder has less room than that."""
    disk = shutil.disk_usage(folder)
    if disk.total and disk.free < needed:  # some network disks report a total of 0
        raise ResourceError(
            f"{folder}: the disk has {disk.free:,} bytes free, the output needs {needed:,}",
            hint="Free some space or write to another disk; nothing was written.",
        )


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above that exists."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())


def index_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.index.json")
