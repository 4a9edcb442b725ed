"""What GitHub Actions reads besides an exit code: `::error` and `::warning` lines, and a step's summary.

GitHub's documents call them workflow commands. They go to stderr, which a runner reads as it does stdout,
so that stdout stays the command's result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from ..errors import GateNotMet, RebasinError, ResourceError
from ..runtime import files
from ..runtime.files import Inputs
from ..runtime.text import clean
from ..runtime.text import line as cut
from . import barrier
from .document import On
from .formats import markdown
from .formats.markdown import escape, fence
from .verdicts import Case, Ended, GateResult, baselines, verdict

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


def _in_the_workspace(file: str) -> str:
    """A file as the job's page knows it: from the top of what was checked out, where it lies there."""
    top = os.environ.get("GITHUB_WORKSPACE")
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


_told_as_one: ContextVar[bool] = ContextVar("_told_as_one", default=False)


@contextmanager
def as_one() -> Iterator[None]:
    """Whoever runs commands within tells of all of them."""
    token = _told_as_one.set(True)
    try:
        yield
    finally:
        _told_as_one.reset(token)


def told_as_one() -> bool:
    """Whether this command is a step of a run."""
    return _told_as_one.get()


MOST = 1 << 20  # bytes of a step summary: GitHub refuses more
SPARE = 512  # bytes, for the sentence that says what was left out
DETAILS, LONGEST_LINE = 40, 1_000  # lines of what is said of a failure, and letters of each


def summary(
    found: Sequence[Case], sections: Sequence[str] = (), *, title: str = "rebasin", room: int = MOST
) -> str:
    """The verdict, what failed and why, the gates, then `sections` (Markdown).

    At most `room` bytes of UTF-8: what does not fit is left out from a section's end on (of gates, a row's;
    the missed ones come first then), and a sentence says so. "" where there is hardly any room.
    """
    gates = [case for case in found if isinstance(case, GateResult)]
    failed = [case for case in found if isinstance(case, Ended) and case.error]
    said = "; ".join(filter(None, [*map(_in_a_word, failed), verdict(gates)]))
    if room < 4 * SPARE:
        return ""
    text = f"## {escape(title)}{': ' * bool(said)}{said}\n"
    first = [*map(_failure, failed)]
    left = room - 2 * SPARE - sum(_bytes(part) + 2 for part in [text, *first])
    sections = [*first, *_gates(gates, left), *sections]
    for place, section in enumerate(sections):
        block = f"\n{section.strip()}\n"
        if _bytes(text) + _bytes(block) > room - SPARE:
            count = len(sections) - place
            what = "1 section is" if count == 1 else f"{count} sections are"
            return f"{text}\n*{what} left out here: a step summary holds {_size(MOST)} at most.*\n"
        text += block
    return text


def _in_a_word(case: Ended) -> str:
    return f"step {escape(case.step)} " * bool(case.step) + escape(case.status)


def _failure(case: Ended) -> str:
    """The error as the log has it."""
    lines = [cut(text, LONGEST_LINE) for text in (case.message, *case.details)]
    left = [f"… and {len(lines) - DETAILS} more lines"] if len(lines) > DETAILS else []
    shown = fence("\n".join(lines[:DETAILS] + left), "text")
    return f"### {_in_a_word(case)} ({escape(case.error)})\n\n{shown}"


def _gates(found: Sequence[GateResult], room: int) -> list[str]:
    if not found:
        return []
    whole = table(found)
    told = [f"*{escape(text[0].upper() + text[1:])}.*" for text in baselines(found)]
    return [whole if _bytes(whole) <= room else _cut(found, room), *told]


def table(found: Sequence[GateResult]) -> str:
    """The gates as a Markdown table, a column for the step where there are steps."""
    return "\n".join(_lines(found))


def _lines(found: Sequence[GateResult]) -> list[str]:
    """Two rows of heads, then one a gate."""
    shown = barrier.gates(found).shown(On.SUMMARY)
    return [*markdown.heads(shown), *(markdown.row(shown, row) for row in shown.rows)]


def _cut(found: Sequence[GateResult], room: int) -> str:
    """As many rows as there is room for, those that are not met first."""
    ordered = sorted(found, key=lambda gate: gate.met)
    every = _lines(ordered)
    lines, rows = every[:2], every[2:]
    used = sum(_bytes(each) + 1 for each in lines) + SPARE
    for place, text in enumerate(rows):
        used += _bytes(text) + 1
        if used > room:
            missed = sum(not gate.met for gate in ordered[place:])
            left = f"{len(ordered) - place} gates ({missed} of them not met) are left out here"
            return "\n".join([*lines, "", f"*{left}: a step summary holds {_size(MOST)} at most.*"])
        lines.append(text)
    return "\n".join(lines)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _size(count: int) -> str:
    return f"{count >> 20} MiB"
