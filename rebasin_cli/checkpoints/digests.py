"""SHA-256 of files and folders, byte for byte as they lie there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import CheckpointError
from ..runtime import files


def of_file(path: Path) -> str:
    """Raises CheckpointError for what is no regular file or cannot be read."""
    try:
        with files.opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        hint = "A step reads files and folders of files"
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", hint=hint) from None


def files_below(folder: Path) -> list[Path]:
    """Every regular file below a folder, in one order; hidden ones are left out."""
    found = []
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(where) / name for name in sorted(names) if not name.startswith(".")]
    return [path for path in found if path.is_file()]


def of_listing(folder: Path) -> str:
    """Of the names, sizes and times of the files in a folder, too many to be read; or of one large file."""
    listing = hashlib.sha256()
    for file in files_below(folder) if folder.is_dir() else [folder]:
        seen = file.stat()
        line = f"{seen.st_size} {seen.st_mtime_ns}  {file.relative_to(folder).as_posix()}\n"
        listing.update(line.encode("utf-8", "surrogateescape"))
    return listing.hexdigest()


def of_path(path: Path, of_one: Callable[[Path], str] = of_file) -> str:
    """Of a file its digest by `of_one`; of a folder, one of the names and digests of all files in it."""
    if not path.is_dir():
        return of_one(path)
    listing = hashlib.sha256()
    for file in files_below(path):
        listing.update(
            f"{of_one(file)}  {file.relative_to(path).as_posix()}\n".encode("utf-8", "surrogateescape")
        )
    return listing.hexdigest()
