"""Gates of a report, whenever they are judged: right after measuring, or of a report that was stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import CheckpointError, UsageError
from ...measure import gates
from ...measure.baseline import Baseline
from ...reports import Report, _gates, markdown
from ...reports._format import clean, title
from ...reports.json import ODD
from ...runtime.files import is_missing, meant
from ...session.listener import Listener
from ...session.subjects import ACCEPT, REFUSE
from .outputs import Destinations, Written, stored_report, write_reports

MISSING = (REFUSE, ACCEPT)


def baseline(path: Path | None, missing: str = REFUSE) -> Baseline | None:
    """What `--baseline` names, where it names anything. Raises UsageError for all that is no report.

    A file that is not there is accepted where that was asked for; whatever is there has to be a report.
    """
    if missing not in MISSING:
        raise UsageError(f"--missing-baseline is {' or '.join(MISSING)}, not {missing!r}")
    if path is None:
        if missing == ACCEPT:
            raise UsageError(
                "--missing-baseline accept, and no baseline is named", hint="Add --baseline FILE"
            )
        return None
    if is_missing(path):
        if missing == ACCEPT:
            return Baseline(str(path))
        hint = "On a first run there is none: --missing-baseline accept lets that pass (in a recipe: "
        hint += "`baseline: {file: FILE, missing: accept}`)"
        raise UsageError(f"--baseline {path}: no such file{meant(path)}", hint=hint)
    found = stored_report(path, "--baseline")
    return Baseline(str(path), found.report, found.sha256)


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """What is of no fixed form in a report may be anything: CheckpointError where that makes no sense."""
    try:
        yield
    except ODD as cause:
        problem = clean(f"{type(cause).__name__}: {cause}")
        message = f"{path}: the report is damaged: it holds values that no report has"
        raise CheckpointError(message, problems=[problem]) from cause


def judge(
    report: Report, asked: gates.Asked, written: Written, destinations: Destinations, listener: Listener
) -> Report:
    """The report with its gates judged, written wherever it was asked for, added to the step summary."""
    report = gates.judged(report, asked)
    write_reports(report, destinations, force=written.force)
    if written.summary is not None:
        found = _gates.results(report)
        if told := written.summary.add(found, markdown.sections(report), title=title(report)):
            listener.say(told)
    return report
