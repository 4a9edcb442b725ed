"""What steps have made, so that a step whose files, options and program are as they were is not run again.

Beside the outputs, in one folder (`.rebasin` by default):

    steps/KEY.json     a step that was done: its outputs with their digests, and its result
    measured/KEY.json  what a step has measured, whatever its gates said
    files/ID.json      a file's digest, with the size, the times and the inode it was read at; whether a step
                       made it, and what a step knew it by that was about to give it its name
    started/ID.json    the key of the step that began last to write these outputs
    locks/ID.lock      held by the job that writes this output
    documents/ID.json  what the last run of a recipe left of itself (`documents.py`)

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
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checkpoints import digests
from ...checkpoints.stages import watched
from ...errors import RebasinError
from ...registry import references
from ...reports import Report
from ...reports.formats import json as json_format
from ...runtime import files
from ..verbs.attestation import versions
from .files import is_inside, lies
from .records import Records, digest_of

if TYPE_CHECKING:
    from .steps import Step

NOTATION = 2
REPORT = "rebasin.report/"  # how the schema of a barrier report begins
MEASURING = ("barrier",)  # commands that take what was measured before (`commands.verbs.measured`)
LOGGED = b'{"step": '  # how a log begins, which grows after it got its name


@dataclass(frozen=True)
class Record:
    """A step that was done: its `outputs` by digest, and its `result`."""

    outputs: Mapping[str, str]
    result: Mapping[str, Any]


class Cache(Records):
    """Where nothing can be recorded, every step is run.

    Records of a `stranger`'s recipe are its own: no other run believes them.
    """

    def __init__(
        self, folder: Path, say: Callable[[str], None] = lambda text: None, *, stranger: bool = False
    ):
        super().__init__(folder, say)
        self.stranger = stranger

    def reads(self, step: Step) -> dict[str, str]:
        """The digest of every file that a step reads. Raises CheckpointError for one that is gone."""
        return {str(path): self.digest(path) for path in dict.fromkeys(step.reads)}

    def key(self, step: Step, reads: Mapping[str, str] | None = None, **more: Any) -> str:
        """What this step's result depends on, as one digest, with what `more` it does.

        CheckpointError for a file that is gone.
        """
        facts = {
            "notation": NOTATION,
            "versions": {**versions(), "python": sys.version_info[:2]},
            "line": step.line(),
            "reads": self.reads(step) if reads is None else dict(reads),
            "listed": [[str(path), digests.of_listing(path)] for path in step.listed],
            "surroundings": {references.DATA: os.environ.get(references.DATA)},
        }
        facts |= {"stranger": True} if self.stranger else {}
        facts |= more
        return digest_of(facts)

    def digest(self, path: Path) -> str:
        """Of a file or folder, also of one that was put aside; one that was not touched is not read again."""
        return digests.of_path(lies(path), self._of_file)

    def _of_file(self, path: Path) -> str:
        known, now = self._known(path), _stat(path)
        if known and now and known.get("stat") == now:
            return str(known["sha256"])
        found = digests.of_file(path)
        if _stat(path) == now:
            made = {"made": True} if known.get("made") and known.get("sha256") == found else {}
            made |= {"making": known["making"]} if known.get("making") else {}  # it ends with the step
            self._note(path, {"path": str(path), "stat": now, "sha256": found} | made)
        return found

    def find(self, key: str) -> tuple[Record | None, str]:
        """The record of a step, if all that it made is still there; else why it has to run."""
        kept = self.record("steps", key)
        if kept is None or kept["key"] != key:  # another step's, under this one's name
            return None, ""
        for name, digest in kept["outputs"].items():
            path = lies(Path(name))
            if not path.exists():
                return None, f"{name} is gone"
            if self.digest(path) != digest:
                return None, f"{name} was changed"
        for name in kept["outputs"]:  # also where only the records of steps were kept
            self.made(lies(Path(name)))
        return Record(kept["outputs"], kept["result"]), ""

    def keep(self, step: Step, key: str, outputs: Mapping[str, str], result: Mapping[str, Any]) -> None:
        """Record a step that was done."""
        kept = {"step": step.name, "line": step.shown(), "outputs": dict(outputs), "result": dict(result)}
        self.put("steps", key, kept | {"key": key})

    # ---------------------------------------------------------------------------- what was measured

    def measured(self, key: str | None) -> Report | None:
        """The report that a step of this `measuring` would measure; None where nobody knows."""
        kept = None if key is None else self.record("measured", key)
        if kept is None or kept["key"] != key:
            return None
        try:
            return report_of(kept["result"])
        except RebasinError:
            return None

    def keep_measured(self, step: Step, key: str | None, result: Mapping[str, Any]) -> None:
        """Record what a step has measured, as it made it, whatever its gates said."""
        if key is not None and _is_report(result):
            self.put("measured", key, {"key": key, "step": step.name, "result": dict(result)})

    def measuring(self, step: Step, reads: Mapping[str, str]) -> str | None:
        """A key of all that a step's report depends on but its gates and baselines, None where it makes none.

        So a record is as good as measuring anew: gates are judged by its figures, and never taken over. Rows
        that gates name with a repair are measured, whatever a search chooses. `reads` are digests of what the
        step reads.
        """
        if step.command.name not in MEASURING:
            return None
        apart = {str(path) for path in step.judging}
        depends = {name: digest for name, digest in reads.items() if name not in apart}
        return self.key(step.measuring(), depends, rows=_fixed_rows(step.options.get("gate") or ()))

    # ------------------------------------------------------------------------------- whose a file is

    def made(self, path: Path) -> str:
        """Remember that a step made this file, so that one may replace it; its digest."""
        digest = self.digest(path)
        known = self._known(path)
        if known and not known.get("made"):
            self._note(path, known | {"made": True})
        return digest

    @contextlib.contextmanager
    def making(self, paths: Sequence[Path]) -> Iterator[list[Path]]:
        """While these are written: what gets its name within is known for ours, also after a kill -9.

        A file is known by its size, its time and its inode, told right before it gets its name: another one
        that somebody puts there is not. What is in the list in the end was made here in whatever way.
        """
        places, told, made = {self.name_of(path) for path in paths}, [], list[Path]()

        def arriving(path: Path, status: os.stat_result) -> None:
            if places & {self.name_of(place) for place in (path, *path.parents)}:
                known = self._known(path) or {"path": str(path), "stat": [], "sha256": ""}
                self._note(path, known | {"making": _identity(status)})
                told.append(path)

        try:
            with watched(arriving):
                yield made
        finally:
            self._settle([*told, *(path for path in made if self.name_of(path) in places)])

    def _settle(self, paths: Sequence[Path]) -> None:
        """What is there was made here. A record takes the place of another: none is missing in between."""
        for path in dict.fromkeys(paths):
            for file in digests.files_below(path) if path.is_dir() else [path] * path.exists():
                self.digest(file)
                if known := self._known(file):
                    settled = {name: value for name, value in known.items() if name != "making"}
                    self._note(file, settled | {"made": True})
            if not path.is_file():
                self.drop("files", self.name_of(path))

    def is_ours(self, path: Path) -> bool:
        """Whether a step wrote this file, and nobody changed it since; of a folder, all files in it."""
        known = self._known(path)
        if known.get("making") and _is_that(path, known["making"]):
            return True
        if path.is_dir():
            return all(self.is_ours(file) for file in digests.files_below(path))
        return bool(known.get("made")) and self._of_file(path) == known["sha256"]

    def move(self, path: Path, to: Path) -> None:
        """Give a file of ours another name; it stays ours, whenever this ends. Raises OSError.

        What somebody puts in its place meanwhile is not taken for it: it is read before it is believed.
        """
        before, known = _stat(path), {"path": str(to), "sha256": self.digest(path), "made": True}
        self._note(to, known | {"stat": []})
        same = _stat(path) == before
        os.replace(path, to)
        if same and before and (now := _stat(to)) and _kept(now) == _kept(before) and not to.is_symlink():
            self._note(to, known | {"stat": now})

    def started(self, step: Step, key: str | None = None) -> str | None:
        """The key of the step that last began to write these outputs; `key` is that of one that begins."""
        name = hashlib.sha256("\0".join(map(self.name_of, step.files)).encode()).hexdigest()[:32]
        before = self.record("started", name)
        if key is not None:
            self.put("started", name, {"key": key, "step": step.name})
        return before["key"] if before else None

    @contextlib.contextmanager
    def alone(self, step: Step, say: Callable[[str], None]) -> Iterator[None]:
        """While no other job runs a step that writes one of these files; another one's end is waited for."""
        with contextlib.ExitStack() as stack:
            waiting = f"{step.name}: another job writes the same files; waiting for it"
            for name in sorted({self.name_of(path) for path in step.files}):  # one order: none waits for ever
                stack.enter_context(self.held(name, lambda: say(waiting)))
            yield

    def is_busy(self, path: Path) -> bool:
        """Whether another job runs a step that writes this file."""
        return self.is_held(self.name_of(path))

    def _known(self, path: Path) -> dict[str, Any]:
        """What is recorded of a file."""
        return self.record("files", self.name_of(path)) or {}

    def _note(self, path: Path, known: Mapping[str, Any]) -> None:
        self.put("files", self.name_of(path), known)


def report_of(result: Mapping[str, Any]) -> Report | None:
    """The barrier report that a step left; None where it left something else."""
    return json_format.load(json.dumps(result)) if _is_report(result) else None


def _is_report(result: Mapping[str, Any]) -> bool:
    return str(result.get("schema", "")).startswith(REPORT)


def _fixed_rows(gates: Sequence[str]) -> list[str]:
    from ...measure.gates import fixed_rows  # heavy
    from ...measure.thresholds import parse_gate

    try:
        return fixed_rows(map(parse_gate, gates))
    except RebasinError:  # told by the step
        return list(gates)


@contextlib.contextmanager
def of_run(folder: Path, say: Callable[[str], None], *, stranger: bool) -> Iterator[Cache]:
    """The cache of one run.

    What lies in the working folder of a `stranger`'s recipe may be of his making: records there, which could
    say that a gate was met, are neither read nor written, and those of this run are gone with it.
    """
    if not stranger:
        yield Cache(folder, say)
        return
    home, place = os.path.realpath(os.getcwd()), os.path.realpath(folder)
    if not is_inside(place, home):
        yield Cache(folder, say, stranger=True)
        return
    say(f"the cache {folder} lies beside the recipe: nothing in it is believed, and every step is run")
    with tempfile.TemporaryDirectory(prefix="rebasin-") as made:
        yield Cache(Path(made) / "cache", say, stranger=True)


def _is_that(path: Path, identity: list[int]) -> bool:
    """Whether a file is the one that was about to get this name, or a log that it grew to."""
    try:
        with files.opened(path) as file:
            now = _identity(os.fstat(file.fileno()))
            return now == identity or (now[-1] == identity[-1] and file.read(len(LOGGED)) == LOGGED)
    except OSError:
        return False


def _kept(stat: list[int]) -> list[int]:
    """What of `_stat` a file keeps when it gets another name."""
    size, modified, _, inode = stat
    return [size, modified, inode]


def _identity(status: os.stat_result) -> list[int]:
    """What a file keeps when it gets another name."""
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _stat(path: Path) -> list[int] | None:
    """What changes when a file's content does; ctime cannot be set by who wants to deceive."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
