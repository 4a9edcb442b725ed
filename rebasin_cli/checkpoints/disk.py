"""A folder as staging needs it: locks, removals and renames that last, and what the disk says as an error."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ResourceError
from ..runtime.signals import held_back

REDO, UNDO = "redo", "undo"  # how the name of a journal ends
_JOURNAL = re.compile(r"\.rebasin-([0-9a-f]{16})\.(lock|redo|undo)")
_TEMPORARY = re.compile(r"\.rebasin-([0-9a-f]{16})-\d+\.tmp")
_OF_OLD = re.compile(r"\.rebasin-[0-9a-f]{12}\.tmp(\.safetensors)?")  # versions that locked nothing
DAY = 86400.0  # seconds
log = logging.getLogger("rebasin")
fcntl: ModuleType | None


try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing that was left is touched
    fcntl = None

LOCK = "lock"  # how the name of a lock ends


def can_lock() -> bool:
    """Whether this system locks files."""
    return fcntl is not None


def lock(descriptor: int, *, waiting: bool) -> None:
    """Lock an open file, where the system can; if not `waiting`, BlockingIOError says that another has."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waiting else fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_of_our_own(folder: Path) -> tuple[str, int | None]:
    """A new token and its lock's descriptor; another where a run that tidies up was quicker to lock it."""
    while True:
        token = secrets.token_hex(8)
        path = folder / f".rebasin-{token}.{LOCK}"
        with disk(folder):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if not can_lock():  # an open file cannot be renamed there
            os.close(descriptor)
            return token, None
        try:
            lock(descriptor, waiting=False)
            if os.fstat(descriptor).st_nlink:
                return token, descriptor
        except BlockingIOError:
            pass
        except OSError:  # a disk without locks: runs there leave one another's files alone
            return token, descriptor
        os.close(descriptor)


def probe(folder: Path) -> None:
    """Raise ResourceError where no file can be made in a folder. Who tidies up knows a lock as in use."""
    with held_back():
        token, descriptor = lock_of_our_own(folder)
        remove([folder / f".rebasin-{token}.{LOCK}"])
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One process at a time renames in a folder, where the system can lock one; others wait."""
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        lock(descriptor, waiting=True)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def disk(path: Path) -> Iterator[None]:
    """What the disk says within the block, as a ResourceError about `path`."""
    try:
        yield
    except OSError as cause:
        raise resource_error(path, cause) from cause


def resource_error(path: Path, cause: OSError) -> ResourceError:
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Free some space or write to another disk; nothing was written."
    else:
        hint = "Choose a folder that can be written; nothing was written."
    return ResourceError(f"{path} cannot be written: {cause.strerror or cause}", hint=hint)


def remove(files: Iterable[Any]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file)


def sync(folder: Path) -> None:
    """Make renames last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class Moves:
    """(temporary name, final name) of every new file, and (name, name aside) of every old one."""

    new: Sequence[tuple[str, str]]
    old: Sequence[tuple[str, str]]

    def redo(self, folder: Path, *, again: bool = False) -> None:
        """Old files step aside, new ones get their names, old ones go; `again` after a process has died."""
        if not again:
            for name, aside in self.old:
                os.replace(folder / name, folder / aside)
        for temporary, name in self.new:
            if not again or (folder / temporary).exists():
                os.replace(folder / temporary, folder / name)
        kept = {name for _, name in self.new}
        remove(folder / aside for _, aside in self.old)
        if again:  # those that had not stepped aside yet
            remove(folder / name for name, _ in self.old if name not in kept)

    def undo(self, folder: Path) -> None:
        """Everything as it was, from wherever `redo` ended; new files are gone."""
        aside = dict(self.old)
        for temporary, name in self.new:
            if name not in aside and not (folder / temporary).exists():
                remove([folder / name])
        for name, there in self.old:
            if (folder / there).exists():
                os.replace(folder / there, folder / name)
        remove(folder / temporary for temporary, _ in self.new)

    def encoded(self) -> bytes:
        """What a journal holds, as `_moves` reads it."""
        return json.dumps({"new": self.new, "old": self.old}).encode()


def recover(folder: Path) -> None:
    """Bring to its end what processes that have died left in a folder, and say so in the log.

    Only our own user's files, and none of a process that lives: it holds its lock.
    """
    if not can_lock():
        return
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(".rebasin-")]
    except OSError:
        return
    if not names:
        return
    with alone_in(folder):
        for name in names:
            if found := _JOURNAL.fullmatch(name):
                with contextlib.suppress(OSError):
                    _settle(folder, name, *found.groups())
        _remove_orphans(folder, names)


def _settle(folder: Path, name: str, token: str, kind: str) -> None:
    descriptor = os.open(folder / name, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        try:
            lock(descriptor, waiting=False)
        except BlockingIOError:
            return  # who writes it lives
        status = os.fstat(descriptor)
        if status.st_nlink != 1 or status.st_uid != os.geteuid():
            return
        if kind != LOCK:
            moves = _moves(os.pread(descriptor, status.st_size, 0), token)
            moves.redo(folder, again=True) if kind == REDO else moves.undo(folder)
            done = "finished" if kind == REDO else "taken back"
            log.info(f"{folder}: the renaming of a run that was killed was {done}: {_listed(moves.new)}")
        left = [path for path in folder.glob(f".rebasin-{token}-*.tmp") if _TEMPORARY.fullmatch(path.name)]
        _remove_and_say(folder, left)
        sync(folder)
        os.unlink(folder / name)
    finally:
        os.close(descriptor)


def _moves(text: bytes, token: str) -> Moves:
    """What a journal says. Raises OSError for one that is not ours: it may name files of its folder alone."""
    try:
        told = json.loads(text)
        moves = Moves(*([(str(one), str(other)) for one, other in told[key]] for key in ("new", "old")))
    except (ValueError, KeyError, TypeError) as cause:
        raise OSError("no journal") from cause
    ours = [temporary for temporary, _ in moves.new] + [aside for _, aside in moves.old]
    names = [name for _, name in moves.new] + [name for name, _ in moves.old]
    if not all(found and found[1] == token for found in map(_TEMPORARY.fullmatch, ours)):
        raise OSError("no journal of ours")
    if any("/" in name or "\0" in name or name in ("", ".", "..") for name in names):
        raise OSError("no journal of ours")
    return moves


def _remove_orphans(folder: Path, names: Sequence[str]) -> None:
    """Files without a journal, which outlives them; those of old versions, which had none, after a day."""
    orphans = []
    for name in names:
        found, path = _TEMPORARY.fullmatch(name), folder / name
        if found and any((folder / f".rebasin-{found[1]}.{kind}").exists() for kind in (LOCK, REDO, UNDO)):
            continue
        if not found and not _OF_OLD.fullmatch(name):
            continue
        with contextlib.suppress(OSError):
            status = path.lstat()
            aged = found or time.time() - status.st_mtime > DAY
            orphans += [path] * (status.st_uid == os.geteuid() and bool(aged))
    _remove_and_say(folder, orphans)


def _remove_and_say(folder: Path, files: Sequence[Path]) -> None:
    size = 0
    for path in files:
        with contextlib.suppress(OSError):
            size += path.lstat().st_size
    if files:
        remove(files)
        many = f"{len(files)} unfinished file{'s' * (len(files) > 1)}"
        log.info(f"{folder}: removed {many} of a run that was killed ({size:,} bytes)")


def _listed(new: Sequence[tuple[str, str]]) -> str:
    names = [name for _, name in new]
    return ", ".join(names[:3]) + (f" … ({len(names)} files)" if len(names) > 3 else "")
