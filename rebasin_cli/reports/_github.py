"""What GitHub Actions reads besides an exit code: `::error` lines, and the file of the step's summary.

GitHub's documents call them workflow commands. They go to stderr, which a runner reads as it does stdout,
so that stdout stays the command's result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import GateNotMet, ResourceError
from ..runtime import files
from ..runtime.files import Inputs
from ._format import clean
from ._gates import MOST, GateResult, summary

SHOWN = 10  # errors that GitHub shows of one step
LONGEST = 4_000  # letters of one message


def running(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def annotations(found: Sequence[GateResult]) -> list[str]:
    """A line for every gate that is not met; of more than ten the last says how many more there are."""
    missed = [gate for gate in found if not gate.met]
    shown = missed if len(missed) <= SHOWN else missed[: SHOWN - 1]
    lines = [error("gate not met" + f" in {gate.step}" * bool(gate.step), gate.told) for gate in shown]
    if left := len(missed) - len(shown):
        lines.append(error("gates not met", f"{left} more gates are not met"))
    return lines


def of_error(failure: BaseException, told: str) -> list[str]:
    """The lines for what ends the program: those of its gates, or one with the first line as its title."""
    if isinstance(failure, GateNotMet) and failure.gates:
        return annotations(failure.gates)
    return [error("", "\n".join(map(clean, told.splitlines())))] if told else []


def error(title: str, message: str) -> str:
    """`::error title=…::…` on one line, whatever is in the texts."""
    cut = message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
    title = f"rebasin: {title}" if title else "rebasin"
    return f"::error title={_escaped(title, ':,')}::{_escaped(cut)}"


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

    def add(
        self, found: Sequence[GateResult], sections: Sequence[str] = (), *, title: str = "rebasin"
    ) -> str:
        """Add the summary of these gates and sections; what to tell where that fails, else "".

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
    """The file that the user named; else GitHub's, in a job of GitHub Actions; else None."""
    if named is not None:
        return StepSummary(named)
    given = environ.get("GITHUB_STEP_SUMMARY")
    return StepSummary(Path(given), asked=False) if given and running(environ) else None
