"""What belongs to a file that a step names: shards, included specs, imported code; files of a report."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePosixPath

from ...registry import Registry, references
from ...registry.source import constant
from ...runtime import files

NOT_PASSED = "not-passed"  # the folder of what must not be taken for passed (`aside.py`)


def aside_of(path: Path, root: Path) -> Path:
    """Where a file of a step's output lies that has not passed; `root` is the output, a file or a folder."""
    return root.parent / NOT_PASSED / root.name / path.relative_to(root)


def lies(path: Path) -> Path:
    """Where a file lies: in its place, or aside, by itself or in a folder that was the output."""
    if os.path.lexists(path):
        return path
    asides = (aside_of(path, root) for root in (path, *path.parents) if root.name)
    return next((aside for aside in asides if aside.exists()), path)


def is_inside(place: str, folder: str) -> bool:
    """Whether one real path is the other, or below it."""
    return place == folder or place.startswith(folder.rstrip(os.sep) + os.sep)


def index(path: Path) -> Path:
    return path.with_name(f"{path.name}.index.json")


def beside_torch(path: Path) -> Path | None:
    """Where the metadata of a torch file are kept; None for other files."""
    if path.suffix not in files.TORCH_SUFFIXES:
        return None
    return path.with_name(path.name + constant("rebasin_cli.checkpoints.torch_writer", "SUFFIX"))


def is_sharded(path: Path) -> bool:
    return not path.exists() and index(path).exists()


def opened(path: Path) -> list[Path]:
    """A file and all that is read with it: shards of an index, what a spec includes, what code imports, and
    what a torch file's metadata are kept in."""
    if path.suffix in (".yaml", ".yml") and path.is_file():
        from ...spec import library

        return library.files_of(path)
    if path.suffix == ".py":
        return [path, *(file for file in references.files_of(f"{path}:_") if file != path)]
    if (about := beside_torch(path)) is not None:
        return [path, *[about] * about.is_file()]
    if not path.name.endswith(".index.json"):
        return [path]
    try:
        most = constant("rebasin_cli.checkpoints.safetensors_format", "MAX_HEADER")
        shards = map(PurePosixPath, sorted(set(json.loads(files.content(path, most))["weight_map"].values())))
        kept = [name for name in shards if not name.is_absolute() and ".." not in name.parts]
        return [path, *(path.parent / name for name in kept)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [path]  # its command says what is wrong with it


def beside(path: Path) -> list[Path]:
    """The files that --copy-files takes from the folder of a model; a folder counts with all of its own."""
    globs = constant("rebasin_cli.commands.verbs.folders", "BESIDE")
    there = [] if path.is_dir() or not path.parent.is_dir() else sorted(path.parent.iterdir())
    return [file for file in there if file.is_file() and any(map(file.match, globs))]


def report_files(command: str, folder: Path) -> dict[str, Path]:
    """The files of a report folder; `report` is the one for programs."""
    if command == "compare":
        names = constant("rebasin_cli.measure.formats", "FILENAMES")
    else:
        formats = Registry("reports", "report format")
        names = {name: formats.constant(name, "FILENAME") for name in formats.names()}
    found = {f"report.{name}": folder / file for name, file in names.items() if file}
    return {"report": found["report.json"], **found}
