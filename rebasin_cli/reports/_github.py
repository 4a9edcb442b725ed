"""What GitHub Actions reads besides an exit code: `::error` and `::warning` lines, and a step's summary.

GitHub's documents call them workflow commands. They go to stderr, which a runner reads as it does stdout,
so that stdout stays the command's result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import GateNotMet, RebasinError, ResourceError
from ..runtime import files
from ..runtime.files import Inputs
from ._as_one import told_as_one
from ._format import clean
from ._gates import Case, GateResult, baselines
from ._summary import MOST, summary

SHOWN = 10  # errors that GitHub shows of one step
LONGEST = 4_000  # letters of one message
_LINE = re.compile(r"line (\d{1,9})\b")


def running(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def missed(found: Sequence[GateResult], file: str | None = None) -> list[str]:
    """A line for every gate that is not met, at its step in `file`."""
    lines = [
        error(
            "gate not met" + f" in {gate.step}" * bool(gate.step),
            "\n".join([gate.told, *baselines([gate])]),
            *(file, line_of(gate.where)),
        )
        for gate in found
        if not gate.met
    ]
    return _few(lines, "gates are not met", file)


def warnings(found: Sequence[GateResult], file: str | None = None) -> list[str]:
    """A `::warning` for every baseline that is not there yet, at its step in `file`."""
    skipped = [gate for gate in found if gate.skipped]
    return [_line("warning", "no baseline yet", gate.told, file, line_of(gate.where)) for gate in skipped]


def of_error(failure: BaseException, told: str) -> list[str]:
    """The lines for what ends the program: those of its gates, of the lines of a recipe, or one for all."""
    file = getattr(failure, "file", None)
    if isinstance(failure, GateNotMet) and failure.gates:
        return missed(failure.gates, file)
    if file is not None and isinstance(failure, RebasinError):
        places = [(line_of(problem), problem) for problem in failure.problems]
        if any(line for line, _ in places):
            return _few([error("", clean(text), file, line) for line, text in places], "problems", file)
    line = line_of(failure.message) if isinstance(failure, RebasinError) else None
    return [error("", "\n".join(map(clean, told.splitlines())), file, line)] if told else []


def _few(lines: list[str], what: str, file: str | None) -> list[str]:
    """Of more than GitHub shows the last says how many more there are."""
    if len(lines) <= SHOWN:
        return lines
    left = len(lines) - SHOWN + 1
    return [*lines[: SHOWN - 1], error(f"{left} more", f"{left} more {what}: see the log", file)]


def line_of(text: str) -> int | None:
    """The line of a recipe that a sentence begins with: `line 12: …`."""
    found = _LINE.match(text)
    return int(found[1]) if found else None


def error(title: str, message: str, file: str | None = None, line: int | None = None) -> str:
    """`::error file=…,line=…,title=…::…` on one line, whatever is in the texts."""
    return _line("error", title, message, file, line)


def _line(kind: str, title: str, message: str, file: str | None, line: int | None) -> str:
    cut = message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
    title = f"rebasin: {title}" if title else "rebasin"
    where = {"file": _in_the_workspace(file) if file else None, "line": line, "title": title}
    told = ",".join(f"{key}={_escaped(clean(value), ':,')}" for key, value in where.items() if value)
    return f"::{kind} {told}::{_escaped(cut)}"


def _in_the_workspace(file: str, environ: Mapping[str, str] = os.environ) -> str:
    """A file as the job's page knows it: from the top of what was checked out, where it lies there."""
    top = environ.get("GITHUB_WORKSPACE")
    if top:
        with suppress(ValueError, OSError):  # another drive; a working directory that is gone
            inside = os.path.relpath(os.path.realpath(file), os.path.realpath(top))
            if inside.partition(os.sep)[0] != os.pardir:
                return inside.replace(os.sep, "/")
    return file


def _escaped(text: str, more: str = "") -> str:
    """`%`, line ends and `more` as GitHub wants them written."""
    return "".join(f"%{ord(char):02X}" if char in "%\r\n" + more else char for char in text)


@dataclass(frozen=True)
class StepSummary:
    """The file that a summary is added to. Where nobody `asked` for it, a failure is only told."""

    path: Path
    asked: bool = True

    @property
    def room(self) -> int:
        """Bytes that it may still take: other commands of the step write into the same file."""
        try:
            return max(0, MOST - self.path.stat().st_size)
        except OSError:
            return MOST

    def check(self, inputs: Inputs = files.NOTHING) -> None:
        """Raise ResourceError where it was asked for and cannot be written, before any work.

        UsageError where nothing may be written by a command that reads `inputs`.
        """
        path, folder = self.path, self.path.absolute().parent
        if self.asked or inputs.holds(path):
            files.check_output(path, inputs)
        wrong = ""
        if not folder.is_dir():
            wrong = f"there is no folder {folder}"
        elif not os.access(path if path.exists() else folder, os.W_OK):
            wrong = "permission denied"
        if wrong and self.asked:
            raise self._error(wrong)

    def add(self, found: Sequence[Case], sections: Sequence[str] = (), *, title: str = "rebasin") -> str:
        """Add the summary of these gates, steps and sections; what to tell where that fails, else "".

        Raises ResourceError where it was asked for.
        """
        text = summary(found, sections, title=title, room=self.room)
        try:
            files.append(self.path, text.encode("utf-8", "backslashreplace"))
        except OSError as reason:
            error = self._error(str(reason.strerror))
            if not self.asked:
                return error.message
            raise error from None
        return ""

    def _error(self, wrong: str) -> ResourceError:
        return ResourceError(
            f"the step summary {self.path} cannot be written: {wrong}",
            hint="Name another file with --step-summary FILE",
        )


def step_summary(named: Path | None = None, environ: Mapping[str, str] = os.environ) -> StepSummary | None:
    """The file that the user named; else GitHub's, in a job of GitHub Actions; else None.

    GitHub's is left to a run that tells of several commands.
    """
    if named is not None:
        return StepSummary(named)
    if told_as_one():
        return None
    given = environ.get("GITHUB_STEP_SUMMARY")
    return StepSummary(Path(given), asked=False) if given and running(environ) else None
