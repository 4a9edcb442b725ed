"""What steps have made, so that a step whose files, options and program are as they were is not run again.

Beside the outputs, in one folder (`.rebasin` by default):

    steps/KEY.json     a step that was done: its outputs with their digests, and its result
    files/ID.json      a file's digest, with the size, the times and the inode it was read at; whether a step
                       made it, or is making it
    started/ID.json    the key of the step that began last to write these outputs
    locks/ID.lock      held by the job that writes this output

A key is the SHA-256 of the command line, the digests of all files that it names, and the versions of rebasin
and of the libraries that compute. A record counts only where every output still has its digest. Files are
known by their place beside the cache, so that both may move together. Without records steps are run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ...checkpoints import digests
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
    """`say` is told once where nothing can be recorded: then every step is run."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None):
        self.folder, self.say, self._told = folder, say, False

    def reads(self, step: Step) -> dict[str, str]:
        """The digest of every file that a step reads. Raises CheckpointError for one that is gone."""
        return {str(path): self.digest(path) for path in dict.fromkeys(step.reads)}

    def key(self, step: Step, reads: Mapping[str, str] | None = None) -> str:
        """What this step's result depends on, as one digest. CheckpointError for a file that is gone."""
        facts = {
            "notation": NOTATION,
            "versions": versions() | {"python": sys.version_info[:2]},
            "line": step.line(),
            "reads": self.reads(step) if reads is None else dict(reads),
            "listed": [[str(path), digests.of_listing(path)] for path in step.listed],
            "surroundings": {name: os.environ.get(name) for name in SURROUNDINGS},
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def digest(self, path: Path) -> str:
        """Of a file or folder; a file that was not touched since is not read again."""
        return digests.of_path(path, self._of_file)

    def _of_file(self, path: Path) -> str:
        known, now = self._read("files", self._id(path)) or {}, _stat(path)
        if known and now and known.get("stat") == now:
            return str(known["sha256"])
        found = digests.of_file(path)
        if _stat(path) == now:
            made = {"made": True} if known.get("made") and known.get("sha256") == found else {}
            made |= {"making": True} if known.get("making") else {}  # it ends with the step, and not before
            self._write("files", self._id(path), {"path": str(path), "stat": now, "sha256": found} | made)
        return found

    def find(self, key: str) -> tuple[Record | None, str]:
        """The record of a step, if all that it made is still there; else why it has to run."""
        kept = self._read("steps", key)
        if kept is None:
            return None, ""
        for name, digest in kept["outputs"].items():
            path = Path(name)
            if not path.exists():
                return None, f"{name} is gone"
            if self.digest(path) != digest:
                return None, f"{name} was changed"
        for name in kept["outputs"]:  # also where only the records of steps were kept
            self.made(Path(name))
        return Record(kept["outputs"], kept["result"]), ""

    def keep(self, step: Step, key: str, outputs: Mapping[str, str], result: Mapping[str, Any]) -> None:
        """Record a step that was done."""
        kept = {"step": step.name, "line": step.line(), "outputs": dict(outputs), "result": dict(result)}
        self._write("steps", key, kept)

    # ------------------------------------------------------------------------------- whose a file is

    def made(self, path: Path) -> str:
        """Remember that a step made this file, so that one may replace it; its digest."""
        digest = self.digest(path)
        known = self._read("files", self._id(path)) or {}
        if known and not known.get("made"):
            self._write("files", self._id(path), known | {"made": True})
        return digest

    def making(self, paths: Sequence[Path]) -> None:
        """Remember that a step is about to write these: what lies there after kill -9 is its own."""
        for path in paths:
            self._write(
                "files", self._id(path), {"path": str(path), "stat": [], "sha256": "", "making": True}
            )

    def settle(self, paths: Sequence[Path]) -> None:
        """The end of `making`: what is there was made here, what is not is forgotten.

        A record takes the place of another, and none is missing in between: a kill may come any time.
        """
        for path in paths:
            for file in digests.files_below(path) if path.is_dir() else [path] * path.exists():
                self.digest(file)
                if known := self._read("files", self._id(file)):
                    settled = {name: value for name, value in known.items() if name != "making"}
                    self._write("files", self._id(file), settled | {"made": True})
            if not path.is_file():
                self._forget("files", self._id(path))

    def is_ours(self, path: Path) -> bool:
        """Whether a step wrote this file, and nobody changed it since; of a folder, all files in it."""
        known = self._read("files", self._id(path)) or {}
        if known.get("making"):
            return True
        if path.is_dir():
            return all(self.is_ours(file) for file in digests.files_below(path))
        return bool(known.get("made")) and self._of_file(path) == known["sha256"]

    def started(self, step: Step, key: str | None = None) -> str | None:
        """The key of the step that last began to write these outputs; `key` is that of one that begins."""
        name = hashlib.sha256("\0".join(map(self._id, step.files)).encode()).hexdigest()[:32]
        before = self._read("started", name)
        if key is not None:
            self._write("started", name, {"key": key, "step": step.name})
        return before["key"] if before else None

    @contextlib.contextmanager
    def alone(self, step: Step, say: Callable[[str], None]) -> Iterator[None]:
        """While no other job runs a step that writes one of these files; another one's end is waited for."""
        with contextlib.ExitStack() as stack:
            for name in sorted(
                {self._id(path) for path in step.files}
            ):  # one order, so that none waits for ever
                try:
                    lock = FileLock(self._place("locks") / f"{name}.lock")
                    try:
                        lock.acquire(timeout=0)
                    except Timeout:
                        say(f"{step.name}: another job writes the same files; waiting for it")
                        lock.acquire()
                except OSError as error:
                    self._cannot(error)
                    continue
                stack.callback(lock.release)
            yield

    # --------------------------------------------------------------------------------------- records

    def _id(self, path: Path) -> str:
        """A file by its place beside the cache; one file has one name, whatever links lead to it."""
        place, real = self.folder.absolute().parent, os.path.realpath(path)
        with contextlib.suppress(ValueError):  # another drive
            real = os.path.relpath(real, os.path.realpath(place))
        return hashlib.sha256(os.fsencode(real)).hexdigest()[:32]

    def _read(self, kind: str, name: str) -> dict[str, Any] | None:
        """A record, None where there is none or what is there is none of ours."""
        try:
            found = json.loads((self.folder / kind / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and _NEEDS[kind] <= found.keys() else None

    def _write(self, kind: str, name: str, content: Mapping[str, Any]) -> None:
        try:
            place = self._place(kind) / f"{name}.json"
            temporary = place.with_suffix(f".{os.getpid()}.tmp")
            try:
                temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
                os.replace(temporary, place)
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._cannot(error)

    def _forget(self, kind: str, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / kind / f"{name}.json").unlink(missing_ok=True)

    def _cannot(self, error: OSError) -> None:
        if not self._told:
            self.say(f"the cache {self.folder} cannot be written ({error.strerror}): nothing is recorded")
            self._told = True

    def _place(self, kind: str) -> Path:
        """The folder of these records; git leaves all of the cache alone."""
        folder = self.folder / kind
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            (self.folder / ".gitignore").write_text("*\n", encoding="utf-8")
        return folder


_NEEDS = {"steps": {"outputs", "result"}, "files": {"stat", "sha256"}, "started": {"key"}}


def _stat(path: Path) -> list[int] | None:
    """What changes when a file's content does; ctime cannot be set by who wants to deceive."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
