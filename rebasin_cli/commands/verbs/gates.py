"""Gates of a report, whenever they are judged: right after measuring, or of a report that was stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, UsageError
from ...measure import gates, thresholds
from ...measure.baseline import Baseline
from ...measure.thresholds import PLAIN, Language
from ...registry.results import Result
from ...reports import Report, barrier, github, verdicts
from ...reports.format import title
from ...reports.formats import json as json_format
from ...reports.formats import markdown
from ...reports.formats.json import ODD
from ...reports.github import told_as_one
from ...runtime.files import Destinations, is_missing, meant
from ...runtime.text import clean
from ...session.listener import Listener
from ...session.outcomes import ACCEPT, REFUSE
from . import report_files
from .before import of_missed
from .report_files import Written, stored_report, write_reports

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


def asked_of(asked: Any, language: Language = PLAIN) -> gates.GateSet:
    """Gates on these figures that an operation asks for. Raises UsageError before anything is measured."""
    named = thresholds.asked(asked.gate, max_barrier=asked.max_barrier, language=language)
    return gates.GateSet(named, baseline(asked.baseline, asked.missing_baseline), asked.baseline_tolerance)


def written_of(asked: Any, listener: Listener) -> Written:
    """Where the report goes, and the summary of a step; nothing is written onto the baseline."""
    reads = [asked.baseline] if asked.baseline else []
    summary = github.step_summary(asked.step_summary)
    return report_files.written_of(asked, listener, summary=summary, reads=reads)


@dataclass(frozen=True)
class Judged(Result):
    """A report with its gates judged, and the `baseline` that it was held against."""

    report: Report
    baseline: Path | None = None

    def values(self) -> dict[str, Any]:
        return dict(json.loads(self.json()))

    def json(self) -> str:
        return json_format.render(self.report)

    @cached_property
    def _found(self) -> Sequence[verdicts.GateResult]:
        return verdicts.results(self.report, baseline=of_missed(self.report, self.baseline))

    def warnings(self) -> Sequence[Any]:
        return () if told_as_one() else self._found  # else the run tells

    def end(self) -> None:
        verdicts.raise_unmet(self._found)


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
    report: Report, asked: gates.GateSet, written: Written, destinations: Destinations, listener: Listener
) -> Report:
    """The report with its gates judged, written wherever it was asked for, added to the step summary."""
    report = gates.judged(report, asked)
    write_reports(report, destinations, force=written.force)
    if written.summary is not None:
        found = verdicts.results(report)
        sections = markdown.sections(barrier.document(report, judged=False))
        if told := written.summary.add(found, sections, title=title(report)):
            listener.say(told)
    return report
