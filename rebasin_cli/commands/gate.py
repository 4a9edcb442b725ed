"""`rebasin gate`: a report that was stored, held against gates by what it says alone."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import CheckpointError, UsageError
from ..measure.gates import check_measured
from ..measure.thresholds import Language
from ..registry.options import READS, again, argument
from ..runtime.files import Inputs
from ..session.listener import SILENT, Listener
from ..session.outcomes import REPORT, Answer, Formats, Gates, Screen, Summary, Weights
from .verbs.gates import Judged, asked_of, judge, sound, written_of
from .verbs.report_files import stored_report

LATER = "Gates were judged later, by: "


PANEL = "Measure"


@dataclass(frozen=True, kw_only=True)
class Gate(Gates, Formats):
    """Hold a stored report against gates, without measuring anything. Exit code 1 where one is not met.

    Its gates take the place of those that the report had.

    Example: rebasin gate report/report.json --max-barrier 0.05 --baseline baseline.json
    """

    report: Path = argument("REPORT", "A report.json of rebasin barrier.", role=READS)
    json: bool = again(Answer.json, False, help="Print the report as JSON.", panel=REPORT)
    step_summary: Path | None = Summary.step_summary
    force: bool = Weights.force
    quiet: bool = Screen.quiet


class GateResult(Judged):
    """The report with these gates in the place of those that it had."""


def run(asked: Gate, listener: Listener = SILENT) -> GateResult:
    """Judge a stored report, and write it in every format asked for.

    Nothing is measured: a gate on what the report has no figures of is a UsageError that says what would
    measure them. A file that is no report is a CheckpointError.
    """
    path = asked.report
    written = replace(written_of(asked, listener), folder=None)
    report = stored_report(path, error=CheckpointError).report
    gates = asked_of(asked, Language.of(report))
    if not gates.any:
        raise UsageError(
            "no gate is named",
            hint="Such as --max-barrier 0.1, --gate 'test accuracy >= 0.9', or --baseline FILE",
        )
    destinations = written.destinations(inputs=Inputs((path,)))
    try:
        check_measured(report, gates)
    except UsageError as error:
        command = _quoted(report.command)
        again = f"What was not measured needs a new measurement: {command}" * bool(command)
        hint = " ".join(filter(None, (error.hint, again)))
        raise UsageError(f"{path}: {error.message}", problems=error.problems, hint=hint) from None
    notes = [note for note in report.notes if not note.startswith(LATER)]
    notes += [f"{LATER}{written.command}"] * bool(written.command)
    with sound(path):
        report = judge(replace(report, notes=tuple(notes)), gates, written, destinations, listener)
    return GateResult(report, asked.baseline)


def _quoted(command: str) -> str:
    """A command line that a file tells, as one that may be pasted; "" for what is none of ours."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    return shlex.join(words) if words[:1] == ["rebasin"] else ""
