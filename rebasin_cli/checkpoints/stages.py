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
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import ResourceError
from ..registry.surroundings import with_us
from ..runtime.ranks import ALONE, Ranks
from ..runtime.signals import held_back
from .disk import LOCK, REDO, UNDO, Moves, alone_in, disk, lock_of_our_own, recover, remove, sync

Watcher = Callable[[Path, os.stat_result], object]
_watchers: list[Watcher] = []


@contextlib.contextmanager
def watched(tell: Watcher) -> Iterator[None]:
    """Within, `tell` hears of every file right before it gets its name: the name, and what the file is.

    Its size, its times and its inode go with it, so that it is known again after a kill in between.
    """
    _watchers.append(tell)
    try:
        yield
    finally:
        _watchers.remove(tell)


class Staging:
    """The files that one process is about to give their names, all in one folder."""

    def __init__(self, folder: Path):
        self.folder, self._names = folder, 0
        self._new: list[tuple[str, str]] = []
        self._unsettled = False  # whether the next run has to go on, from the journal
        self._closed = False
        self._checks: list[Callable[[], Iterable[Path]]] = []
        self._token, self._descriptor = lock_of_our_own(folder)

    @contextlib.contextmanager
    def open(self, final: Path) -> Iterator[BinaryIO]:
        """A new file that `commit` will call `final`; it is on the disk when the block ends."""
        temporary = self._name()
        self._new.append((temporary, final.name))
        with disk(final):
            file = open(self.folder / temporary, "xb")
        with durable(file, final):
            yield file

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
        with alone_in(self.folder), held_back():
            old = list(dict.fromkeys(path.name for look in self._checks for path in look()))
            for temporary, name in self._new if _watchers else ():
                for tell in _watchers:
                    tell(self.folder / name, os.stat(self.folder / temporary))
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
            os.write(self._descriptor, moves.encoded())
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


class Guest(Staging):
    """The stage of the first of several ranks, as another one has it: what is the first one's is not done."""

    def __init__(self, folder: Path):
        self.folder = folder

    @contextlib.contextmanager
    def open(self, final: Path) -> Iterator[BinaryIO]:
        """A file that goes nowhere."""
        with open(os.devnull, "wb") as nowhere:
            yield nowhere

    def replaces(self, look: Callable[[], Iterable[Path]]) -> None: ...


@contextlib.contextmanager
def durable(file: BinaryIO, final: Path) -> Iterator[None]:
    """What is written to the file within is on the disk when the block ends, and the file is closed."""
    try:
        yield
        with disk(final):
            file.flush()
            os.fsync(file.fileno())
    finally:
        with contextlib.suppress(OSError):  # closing tries to flush again what a full disk refused
            file.close()


@contextlib.contextmanager
def again(temporary: Path, final: Path) -> Iterator[BinaryIO]:
    """A file of another rank's stage that waits there to be called `final`, to be written into."""
    with disk(final):
        file = open(temporary, "r+b")
    with durable(file, final):
        yield file


@contextlib.contextmanager
def staged(folder: Path, ranks: Ranks = ALONE) -> Iterator[Staging]:
    """Files that get their names when the block ends well; else none is left, and the old ones stay.

    Of several `ranks` all call this alike: the first one's is the stage, and none has it before it is there.
    """
    begun: list[Staging] = []

    def begin() -> None:
        with_us()
        recover(folder)
        with held_back():
            begun.append(Staging(folder))

    try:
        ranks.first(begin)
        yield begun[0] if ranks.rank == 0 else Guest(folder)
        ranks.last(lambda: begun[0].commit())
    finally:
        with held_back():
            for stage in begun:
                stage.close()
