"""Records as JSON files in one folder, a folder a kind, each with a seal; and the locks that lie beside them.

Who cannot write them does without: all that is lost is that work is done again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...runtime import files
from .files import is_inside

# All that lies in the folder.
OWN = {"steps", "measured", "files", "started", "locks", "documents", "downloads", ".gitignore"}
# What every record of a kind holds: anything else was not written by a cache.
HOLDS: dict[str, dict[str, type]] = {
    "steps": {"key": str, "outputs": dict, "result": dict},
    "measured": {"key": str, "result": dict},
    "files": {"path": str, "stat": list, "sha256": str},
    "started": {"key": str, "step": str},
}


class Records:
    """`say` is told once where nothing can be recorded."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None):
        self.folder, self.say, self._told = folder, say, False

    def name_of(self, path: Path) -> str:
        """A file by its place beside the cache; one file has one name, whatever links lead to it."""
        place, real = self.folder.absolute().parent, os.path.realpath(path)
        with contextlib.suppress(ValueError):  # another drive
            real = os.path.relpath(real, os.path.realpath(place))
        return hashlib.sha256(os.fsencode(real)).hexdigest()[:32]

    def record(self, kind: str, name: str) -> dict[str, Any] | None:
        """A record, None where there is none or what is there is not as it was written."""
        try:
            found = json.loads(files.content(self.folder / kind / f"{name}.json"))
            seal = found.pop("seal")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return found if seal == _seal(found) and _is_record(kind, found) else None

    def records(self, kind: str) -> list[dict[str, Any]]:
        """All records of a kind."""
        names = sorted(path.stem for path in (self.folder / kind).glob("*.json"))
        return [found for name in names if (found := self.record(kind, name)) is not None]

    def put(self, kind: str, name: str, content: Mapping[str, Any]) -> None:
        """Record something. Where nothing can be written that is told once, and no error."""
        try:
            place = self._place(kind) / f"{name}.json"
            temporary = place.with_suffix(f".{os.getpid()}.tmp")
            try:
                sealed = {**content, "seal": _seal(content)}
                temporary.write_text(json.dumps(sealed, indent=1) + "\n", encoding="utf-8")
                os.replace(temporary, place)
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._cannot(error)

    def drop(self, kind: str, name: str) -> None:
        """Forget what was recorded."""
        with contextlib.suppress(OSError):
            (self.folder / kind / f"{name}.json").unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self, name: str, waits: Callable[[], object]) -> Iterator[None]:
        """While no other job holds the lock of this name; `waits` is called where one does."""
        from filelock import FileLock, Timeout

        lock = None
        try:
            lock = FileLock(self._place("locks") / f"{name}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                waits()
                lock.acquire()
        except OSError as error:
            self._cannot(error)
            lock = None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def is_held(self, name: str) -> bool:
        """Whether another job holds the lock of this name."""
        try:
            from filelock import FileLock, Timeout
        except ImportError:  # nor can another job
            return False
        try:
            with FileLock(self._place("locks") / f"{name}.lock", timeout=0):
                return False
        except Timeout:
            return True
        except OSError:
            return False

    def check(self) -> None:
        """Raise UsageError where the folder is there and holds other things than a cache.

        In one called `.rebasin` a job may keep what is its own.
        """
        try:
            others = sorted({*os.listdir(self.folder)} - OWN)
            links = sorted(name for name in OWN if os.path.islink(self.folder / name))
        except OSError:  # it is not there, or cannot be read: told where something is written
            return
        others = others if self.folder.name != ".rebasin" else []
        if others or links:
            what = f"holds {others[0]}" if others else f"has a link in it, {links[0]}"
            raise UsageError(
                f"{self.folder} {what}: a cache is a folder of its own",
                hint="Name one that is not there yet, or leave --cache out for .rebasin",
            )

    def check_output(self, path: Path) -> None:
        """Raise UsageError for an output among the records: these are the cache's own."""
        real = os.path.realpath(path)
        if any(is_inside(real, os.path.realpath(self.folder / name)) for name in OWN):
            raise UsageError(
                f"{path} is where the cache {self.folder} keeps its records", hint="Name a file outside of it"
            )

    def _place(self, kind: str) -> Path:
        """The folder of these records; git leaves all of the cache alone."""
        folder = self.folder / kind
        if not folder.is_dir():
            self.check()
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError), open(self.folder / ".gitignore", "x") as file:
                file.write("*\n")
        return folder

    def _cannot(self, error: OSError) -> None:
        if not self._told:
            self.say(f"the cache {self.folder} cannot be written ({error.strerror}): nothing is recorded")
            self._told = True


def digest_of(facts: Any) -> str:
    """The SHA-256 of values that JSON can say, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _seal(content: Mapping[str, Any]) -> str:
    """A record's own digest: what was cut off, or changed by hand, is no record."""
    return digest_of(content)[:16]


def _is_record(kind: str, found: Mapping[str, Any]) -> bool:
    held = {**HOLDS.get(kind, {}), **({"making": list} if "making" in found else {})}
    if not all(isinstance(found.get(name), what) for name, what in held.items()):
        return False
    return kind != "steps" or all(isinstance(digest, str) for digest in found["outputs"].values())
