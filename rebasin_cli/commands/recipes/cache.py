"""What steps have made, so that a step whose files, options and program are as they were is not run again.

Beside the outputs, in one folder (`.rebasin` by default):

    steps/KEY.json     a step that was done: its outputs with their digests, and its result
    files/ID.json      a file's digest, with the size, the times and the inode it was read at, and who made it
    coming/ID-N.json   what was about to get a file's name: its size, time and inode N, which renaming keeps
    started/ID.json    the key of the step that began last to write these outputs
    locks/ID.lock      held by the job that writes these outputs

A key is the SHA-256 of the command line, the digests of all files that it names, and the versions of rebasin
and of the libraries that compute. A record counts only where every output still has its digest. Everything
may be deleted at any time: then steps are run again. So may a run be killed at any time: what it had written
by then is known by `coming`, and is replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ...checkpoints import digests, staging
from ...errors import ResourceError
from ..job.attesting import versions
from .steps import Step

SURROUNDINGS = ("REBASIN_DATA",)  # variables of the environment that tell where data is
NOTATION = 1


@dataclass(frozen=True)
class Record:
    """A step that was done: its `outputs` by digest, and its `result`."""

    outputs: Mapping[str, str]
    result: Mapping[str, Any]


class Cache:
    def __init__(self, folder: Path):
        self.folder = folder

    def key(self, step: Step) -> str:
        """What this step's result depends on, as one digest. CheckpointError for a file that is gone."""
        facts = {
            "notation": NOTATION,
            "versions": versions() | {"python": sys.version_info[:2]},
            "line": step.line(),
            "reads": [[str(path), self.digest(path)] for path in dict.fromkeys(step.reads)],
            "listed": [[str(path), digests.of_listing(path)] for path in step.listed],
            "surroundings": {name: os.environ.get(name) for name in SURROUNDINGS},
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def digest(self, path: Path) -> str:
        """Of a file or folder; a file that was not touched since is not read again."""
        return digests.of_path(path, self._of_file)

    def _of_file(self, path: Path) -> str:
        known, now = self._read("files", _id(path)), _stat(path)
        if known and now and known.get("stat") == now:
            return str(known["sha256"])
        found = digests.of_file(path)
        if _stat(path) == now:
            made_by = known.get("made_by") if known and known["sha256"] == found else None
            facts = {"path": str(path), "stat": now, "sha256": found}
            self._write("files", _id(path), facts | ({"made_by": made_by} if made_by else {}))
        return found

    def find(self, step: Step, key: str) -> tuple[Record | None, str]:
        """The record of this very step, if all that it made is still there; else why it has to run."""
        kept = self._read("steps", key)
        if kept is None:
            return None, ""
        for name, digest in kept["outputs"].items():
            path = Path(name)
            if not path.exists():
                return None, f"{name} is gone"
            if self.digest(path) != digest:
                return None, f"{name} was changed"
        return Record(kept["outputs"], kept["result"]), ""

    def keep(self, step: Step, key: str, result: Mapping[str, Any], made: Sequence[Path]) -> Record:
        """Record a step that was done, unless one of the files that it read was changed meanwhile."""
        outputs = {str(path): self.digest(path) for path in made}
        for path in made:
            self.mark(path, key)
        record = Record(outputs, result)
        if self.key(step) == key:
            kept = {"step": step.name, "line": step.line(), "outputs": outputs, "result": result}
            self._write("steps", key, kept)
        return record

    def mark(self, path: Path, key: str = "run") -> None:
        """Remember that a recipe made this file, so that it may be replaced."""
        self.digest(path)
        if known := self._read("files", _id(path)):
            self._write("files", _id(path), known | {"made_by": key})

    @contextlib.contextmanager
    def noting(self, key: str = "run") -> Iterator[None]:
        """Note every file that is written in the block, before it has its name: a kill may come any time."""

        def coming(path: Path, status: os.stat_result) -> None:
            name = _id(_real(path))
            for old in (self.folder / "coming").glob(f"{name}-*.json"):
                with contextlib.suppress(OSError):  # jobs at once may each be about to write it
                    if time.time() - old.stat().st_mtime > staging.DAY:
                        old.unlink()
            told = {"path": str(path), "file": _of_inode(status), "made_by": key}
            self._write("coming", f"{name}-{status.st_ino}", told)

        with staging.announcing(coming):
            yield

    def made_here(self, path: Path) -> bool:
        """Whether a step wrote this file, or all files in this folder, and nobody changed them since."""
        if path.is_dir():
            return all(self.made_here(file) for file in digests.files_below(path))
        with contextlib.suppress(OSError):
            status = os.stat(path)
            coming = self._read("coming", f"{_id(_real(path))}-{status.st_ino}")
            if coming and coming["file"] == _of_inode(status):
                return True
        known = self._read("files", _id(path))
        if not known or not known.get("made_by"):
            return False
        if known["stat"] == _stat(path):
            return True
        return digests.of_file(path) == known["sha256"]

    def started(self, step: Step, key: str | None = None) -> str | None:
        """The key of the step that last began to write these outputs; `key` is that of one that begins."""
        before = self._read("started", _of_outputs(step))
        if key is not None:
            self._write("started", _of_outputs(step), {"key": key, "step": step.name})
        return before["key"] if before else None

    @contextlib.contextmanager
    def alone(self, step: Step, say: Callable[[str], None]) -> Iterator[None]:
        """While no other job runs a step with these outputs; another one's end is waited for."""
        lock = FileLock(self._place("locks") / f"{_of_outputs(step)}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"{step.name}: another job writes the same files; waiting for it")
            lock.acquire()
        with lock:
            lock.release()
            yield

    def _read(self, kind: str, name: str) -> dict[str, Any] | None:
        """A record, None where there is none or what is there is none of ours."""
        try:
            found = json.loads((self.folder / kind / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and _NEEDS[kind] <= found.keys() else None

    def _write(self, kind: str, name: str, content: Mapping[str, Any]) -> None:
        place = self._place(kind) / f"{name}.json"
        temporary = place.with_suffix(f".{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, place)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise ResourceError(f"the cache {self.folder} cannot be written: {error.strerror}") from None

    def _place(self, kind: str) -> Path:
        """The folder of these records; git leaves all of the cache alone."""
        folder = self.folder / kind
        try:
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                (self.folder / ".gitignore").write_text("*\n", encoding="utf-8")
        except OSError as error:
            raise ResourceError(
                f"the cache {self.folder} cannot be written: {error.strerror}",
                hint="--cache names another folder",
            ) from None
        return folder


_NEEDS = {
    "steps": {"outputs", "result"},
    "files": {"stat", "sha256"},
    "coming": {"file"},
    "started": {"key"},
}


def _id(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _of_inode(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _of_outputs(step: Step) -> str:
    paths = sorted(os.fsencode(path.absolute()) for path in step.writes.values())
    return hashlib.sha256(b"\0".join([step.command.name.encode(), *paths])).hexdigest()[:32]


def _stat(path: Path) -> list[int] | None:
    """What changes when a file's content does; ctime cannot be set by who wants to deceive."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
