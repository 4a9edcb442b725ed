"""Files that appear together or not at all, whatever ends the process in between.

    .rebasin-TOKEN-0.tmp …    what is written; old files that step aside while new ones get their names
    .rebasin-TOKEN.lock       held (flock) by the process that writes, as long as it lives
    .rebasin-TOKEN.redo       the same file with another name, from when all is written: what gets which name
    .rebasin-TOKEN.undo       the same, where that failed and is taken back

Renaming the lock is the step that decides: before it a dead process's files are removed, after it the next
run that writes into the folder brings its renames to their end. So old and new files are never mixed, and
what a process that lives is writing is never touched. Ctrl-C waits while a lock or a name changes.
docs/decisions/0014-staging.md says why not otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ResourceError
from ..runtime.signals import held_back

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing that was left is touched
    fcntl = None

LOCK, REDO, UNDO = "lock", "redo", "undo"
_JOURNAL = re.compile(r"\.rebasin-([0-9a-f]{16})\.(lock|redo|undo)")
_TEMPORARY = re.compile(r"\.rebasin-([0-9a-f]{16})-\d+\.tmp")
_OF_OLD = re.compile(r"\.rebasin-[0-9a-f]{12}\.tmp(\.safetensors)?")  # versions that locked nothing
DAY = 86400.0
log = logging.getLogger("rebasin")


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


class Staging:
    """The files that one process is about to give their names, all in one folder."""

    def __init__(self, folder: Path):
        self.folder, self._names = folder, 0
        self._new: list[tuple[str, str]] = []
        self._unsettled = False  # whether the next run has to go on, from the journal
        self._closed = False
        self._checks: list[Callable[[], Iterable[Path]]] = []
        self._token, self._descriptor = _lock_of_our_own(folder)

    @contextlib.contextmanager
    def open(self, final: Path) -> Iterator[BinaryIO]:
        """A new file that `commit` will call `final`; it is on the disk when the block ends."""
        temporary = self._name()
        self._new.append((temporary, final.name))
        with disk(final):
            file = open(self.folder / temporary, "xb")
        try:
            yield file
            with disk(final):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with contextlib.suppress(OSError):  # closing tries to flush again what a full disk refused
                file.close()

    def staged(self, final: Path) -> Path:
        """Where the file lies that will be called `final`."""
        return self.folder / next(temporary for temporary, name in self._new if name == final.name)

    def replaces(self, look: Callable[[], Iterable[Path]]) -> None:
        """`look` says which files give way, once nobody else renames here; what it raises ends all."""
        self._checks.append(look)

    def commit(self) -> None:
        """Give the files their names, and let the lock go with them: no signal comes in between.

        Whatever fails, they are gone and the old ones are there again.
        """
        if not self._new:
            return
        with _alone_in(self.folder), held_back():
            old = list(dict.fromkeys(path.name for look in self._checks for path in look()))
            with disk(self.folder / self._new[0][1]):
                if len(self._new) == 1 and set(old) <= {self._new[0][1]}:  # the name is never missing
                    os.replace(*(self.folder / name for name in self._new[0]))
                else:
                    self._rename(Moves(tuple(self._new), tuple((name, self._name()) for name in old)))
            self._new = []
            self.close()

    def _rename(self, moves: Moves) -> None:
        try:
            self._decide(moves)
            moves.redo(self.folder)
        except BaseException:
            self._unsettled = True
            try:
                if self._journal(REDO).exists():
                    os.replace(self._journal(REDO), self._journal(UNDO))
                moves.undo(self.folder)
            except OSError as cause:
                raise ResourceError(
                    f"{self.folder}: the disk failed while files got their names: {cause.strerror or cause}",
                    problems=[f"{name}  may be the old file or the new one" for _, name in moves.new],
                    hint="Once the disk works, any rebasin command that writes there brings this to its end.",
                ) from cause
            self._unsettled, self._new = False, []
            raise

    def _decide(self, moves: Moves) -> None:
        if self._descriptor is not None:
            os.write(self._descriptor, json.dumps({"new": moves.new, "old": moves.old}).encode())
            os.fsync(self._descriptor)
            os.replace(self._journal(LOCK), self._journal(REDO))
            sync(self.folder)

    def close(self) -> None:
        """Remove what has no name of its own, and let the lock go: at the very last, and once."""
        if self._closed:
            return
        self._closed = True
        if not self._unsettled:
            remove(self.folder / temporary for temporary, _ in self._new)
            sync(self.folder)
            remove(self._journal(kind) for kind in (LOCK, REDO, UNDO))
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _journal(self, kind: str) -> Path:
        return self.folder / f".rebasin-{self._token}.{kind}"

    def _name(self) -> str:
        self._names += 1
        return f".rebasin-{self._token}-{self._names - 1}.tmp"


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Staging]:
    """Files that get their names when the block ends well; else none is left, and the old ones stay."""
    recover(folder)
    staging = None
    try:
        with held_back():
            staging = Staging(folder)
        yield staging
        staging.commit()
    finally:
        with held_back():
            if staging is not None:
                staging.close()


def recover(folder: Path) -> None:
    """Bring to its end what processes that have died left in a folder, and say so in the log.

    Only our own user's files, and none of a process that lives: it holds its lock.
    """
    if fcntl is None:
        return
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(".rebasin-")]
    except OSError:
        return
    if not names:
        return
    with _alone_in(folder):
        for name in names:
            if found := _JOURNAL.fullmatch(name):
                with contextlib.suppress(OSError):
                    _settle(folder, name, *found.groups())
        _remove_orphans(folder, names)


def _settle(folder: Path, name: str, token: str, kind: str) -> None:
    descriptor = os.open(folder / name, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def _lock_of_our_own(folder: Path) -> tuple[str, int | None]:
    """A new token and its lock's descriptor; another where a run that tidies up was quicker to lock it."""
    while True:
        token = secrets.token_hex(8)
        path = folder / f".rebasin-{token}.{LOCK}"
        with disk(folder):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:  # an open file cannot be renamed there
            os.close(descriptor)
            return token, None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        token, descriptor = _lock_of_our_own(folder)
        remove([folder / f".rebasin-{token}.{LOCK}"])
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process at a time renames in a folder, where the system can lock one; others wait."""
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
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
