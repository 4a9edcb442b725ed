"""What a person names as a file: one way to open it, and one place that says what may be written.

Read is a regular file of at most so many bytes, without waiting: a pipe, a device or a file without end is
refused, whatever links lead to it. Written is where nothing lies or a regular file, and nothing that the
same command reads; no link is followed. Files are replaced by renames and added to by `append` alone.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..errors import RebasinError, UsageError
from ..registry.regular import SMALL, check_regular, content, opened
from ..registry.surroundings import with_us

__all__ = ["SMALL", "append", "check_distinct", "check_output", "content", "opened", "text"]

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
WEIGHTS = (".safetensors", ".safetensors.index.json", *TORCH_SUFFIXES)
Destinations = Sequence[tuple[str, Path]]  # what is written where


def user_cache() -> Path:
    """The folder of what is kept between runs: downloads, and specs that were found. Raises UsageError."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rebasin"
    except RuntimeError:  # a user of a container, whom no file knows
        raise UsageError(
            "the folder of what is kept is not known: this user has no home",
            hint="Name one: XDG_CACHE_HOME=FOLDER",
        ) from None


def text(
    path: str | os.PathLike[str],
    what: str,
    *,
    most: int = SMALL,
    error: type[RebasinError] = UsageError,
    hint: str | None = None,
) -> str:
    """The text of a file, UTF-8 with or without a byte-order mark; `what` names it in an `error`.

    UsageError where there is none. A `hint` says what to do then.
    """
    return decoded(named(path, what, most=most, error=error, hint=hint), what, error=error)


def named(
    path: str | os.PathLike[str],
    what: str,
    *,
    most: int = SMALL,
    error: type[RebasinError] = UsageError,
    hint: str | None = None,
) -> bytes:
    """The bytes of a file; errors are those of `text`."""
    try:
        return content(path, most)
    except FileNotFoundError:
        raise UsageError(f"{what}: no such file", hint=hint) from None
    except OSError as cause:
        raise error(f"{what} cannot be read: {cause.strerror or cause}") from None


def decoded(content: bytes, what: str, *, error: type[RebasinError] = UsageError) -> str:
    """These bytes as text, as `text` reads them."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise error(f"{what} cannot be read: it is not UTF-8") from None


def is_missing(path: Path) -> bool:
    """Whether nothing has this name: no link that leads nowhere, no file that may not be looked at."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # told where it is read
        return False
    return False


def meant(path: Path) -> str:
    """The end of a sentence on a file that is not there: one of nearly its name, which may be meant."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


class _Places:
    """Files and folders by what they are, whatever name one is called by; looked at once."""

    def __init__(self, paths: Iterable[Path]):
        self._real: set[str] = set()
        self._there: set[tuple[int, int]] = set()
        for path in paths:
            with suppress(OSError, ValueError):  # names that no file can have
                self._real.add(os.path.realpath(path))
                self._there.add(_identity(path))  # also hard links, and names that differ in case alone

    def have(self, path: Path) -> bool:
        if not self._real:
            return False
        with suppress(OSError, ValueError):
            return os.path.realpath(path) in self._real or _identity(path) in self._there
        return False

    def are_above(self, path: Path) -> bool:
        return bool(self._real) and any(map(self.have, Path(os.path.realpath(path)).parents))


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


@dataclass(frozen=True)
class Inputs:
    """What a command reads: files, folders of weights (`models`), and folders of `data`."""

    files: tuple[Path, ...] = ()
    models: tuple[Path, ...] = ()
    data: tuple[Path, ...] = ()

    def and_files(self, more: Iterable[Path | None]) -> Inputs:
        return replace(self, files=(*self.files, *(path for path in more if path is not None)))

    def holds(self, path: Path, *, weights: bool = False) -> bool:
        """Whether a file that is written here would be one of these, or change one: by another name, too.

        New files may lie beside a model's own, but for `weights`.
        """
        files, models, data = self._places
        if files.have(path) or data.are_above(path):
            return True
        added = weights or path.name.endswith(WEIGHTS)
        return (added or os.path.exists(path)) and models.are_above(path)

    @cached_property
    def _places(self) -> tuple[_Places, _Places, _Places]:
        return _Places(self.files), _Places(self.models), _Places(self.data)


NOTHING = Inputs()


def check_output(path: Path, inputs: Inputs = NOTHING, *, weights: bool = False) -> None:
    """Raise UsageError where no command that reads `inputs` may write. This alone decides it."""
    if inputs.holds(path, weights=weights):
        raise UsageError(
            f"{path} is read by this very command, and would be replaced"
            if os.path.exists(path)
            else f"{path} is named to be read and to be written, and is not there"
            if path in inputs.files
            else f"{path} is in a folder that this very command reads",
            hint="Name another file: --force is for what an earlier run wrote",
        )
    if os.path.islink(path):  # anybody may have put it there, and what it leads to is not named
        raise UsageError(
            f"{path} is a link, and none is followed to write",
            hint="Remove the link, or name the file that it leads to",
        )
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder, not a file", hint="Name a file in it")
    if not os.path.lexists(path):
        return
    if not os.path.isfile(path):  # a rename would replace /dev/null itself
        raise UsageError(
            f"{path} is not a regular file: it cannot be replaced in one step",
            hint="Name a file; --json prints to stdout",
        )
    if path.suffix == ".py":  # a network's or a loader's, or imported by one
        raise UsageError(f"{path} is Python code, which no output replaces", hint="Name another file")


def check_distinct(destinations: Destinations) -> None:
    """Raise UsageError where two outputs of one command would be the same file."""
    known: dict[str, str] = {}
    for name, path in destinations:
        if (other := known.setdefault(os.path.realpath(path), name)) != name:
            raise UsageError(f"{path} cannot be both the {other} and the {name}", hint="Name another file")


def append(path: Path, added: bytes) -> None:
    """Add to the end of a regular file, or make one: all of it, or nothing where the disk is full.

    Raises OSError for anything else, links too.
    """
    with_us()
    flags = os.O_WRONLY | os.O_APPEND
    flags |= sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"))
    descriptor, new = _to_append(path, flags)
    with open(descriptor, "ab", buffering=0) as file:
        check_regular(before := os.fstat(file.fileno()))
        written = 0
        try:
            while written < len(added):
                written += file.write(added[written:]) or 0
        except BaseException:
            if new:
                os.unlink(path)
            elif os.fstat(file.fileno()).st_size == before.st_size + written:  # nobody has added more
                os.ftruncate(file.fileno(), before.st_size)
            raise


def _to_append(path: Path, flags: int) -> tuple[int, bool]:
    """A descriptor, and whether the file was made."""
    with suppress(FileExistsError):
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
    return os.open(path, flags), False
