"""`rebasin gate` on files: a report that was stored, held against gates by what it says alone."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from ..errors import CheckpointError, UsageError
from ..measure.gates import Asked, check_measured
from ..reports import Report
from ..runtime.files import Inputs
from ..session.listener import SILENT, Listener
from .verbs.gates import judge, sound
from .verbs.outputs import Written, stored_report

LATER = "Gates were judged later, by: "


def gate(
    path: Path,
    written: Written = Written(),  # noqa: B008 (frozen)
    listener: Listener = SILENT,
    *,
    gates: Asked = Asked(),  # noqa: B008 (frozen)
) -> Report:
    """The report with these gates in the place of those that it had, written in every format asked for.

    Nothing is measured: a gate on what the report has no figures of is a UsageError that says what would
    measure them. A file that is no report is a CheckpointError. Gates are never raised here.
    """
    report = stored_report(path, error=CheckpointError).report
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
        return judge(replace(report, notes=tuple(notes)), gates, written, destinations, listener)


def _quoted(command: str) -> str:
    """A command line that a file tells, as one that may be pasted; "" for what is none of ours."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    return shlex.join(words) if words[:1] == ["rebasin"] else ""
