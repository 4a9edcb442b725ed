"""`rebasin promote`: a report that was good enough becomes the baseline of those that come."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError, GateNotMet, OutputExists, RebasinError, UsageError
from ..measure.baseline import Subject, check_baseline
from ..measure.gates import contradicted
from ..registry.options import READS, REPLACES, TRUSTS, again, argument, option
from ..registry.results import Result
from ..reports import Report, verdicts
from ..runtime import files
from ..runtime.files import Inputs, is_missing
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, Screen
from ..session.subjects import Scoring
from .verbs.gates import sound
from .verbs.report_files import Stored, stored_report, write_files

PANEL = "Measure"


@dataclass(frozen=True, kw_only=True)
class Promote:
    """Make a report the baseline of those that come. Exit code 1 where one of its gates was not met.

    Never in the run that is held against it. Only a report of the same data and network is replaced.

    Example: rebasin promote out/report/report.json baseline.json
    """

    report: Path = argument("REPORT", "A report.json of rebasin barrier whose gates were met.", role=READS)
    baseline: Path = argument("BASELINE", "The file that --baseline names, there or not.", role=REPLACES)
    ungated: bool = option(False, "Also a report that was held against no gate.", role=TRUSTS)
    skip_checks: bool = again(
        Scoring.skip_checks,
        False,
        help="Also a report that was measured with --skip-checks.",
        panel="",
        everywhere=False,
    )
    json: bool = Answer.json
    quiet: bool = Screen.quiet


@dataclass(frozen=True)
class PromoteResult(Result):
    """The baseline that was `written`, with its `sha256`, and that of the report that it `replaced`.

    `held_against` says what the report was compared with, `gates` whether they were "met", or "none".
    """

    written: list[str]
    sha256: str
    replaced: str | None
    held_against: str
    gates: str


def run(asked: Promote, listener: Listener = SILENT) -> PromoteResult:
    """Put the report in the place of the baseline, byte by byte and in one step.

    Raises GateNotMet where a gate of the report was missed; UsageError for one that was held against none
    (but if `ungated`), or measured without a look at its endpoints (but with `skip_checks`); CheckpointError
    for what is no report, or says of its gates what its figures do not. What lies at `baseline` has to be a
    report of the same subject, or nothing.
    """
    report, baseline = asked.report, asked.baseline
    files.check_output(baseline, Inputs((report,)))
    if baseline.name.endswith(files.WEIGHTS):
        raise UsageError(f"{baseline} would be taken for weights", hint="Name a file such as baseline.json")
    new = stored_report(report, error=CheckpointError)
    with sound(report):
        _check_passed(new.report, report, ungated=asked.ungated)
    if _unchecked(new.report) and not asked.skip_checks:
        raise UsageError(
            f"{report} was measured with --skip-checks: nobody looked whether its endpoints are right",
            hint="Measure it without, or give --skip-checks here, too",
        )
    check_baseline(new.report, named=str(report))
    old = _replaced(baseline, new.report)
    if old is None or old.sha256 != new.sha256:
        write_files([(baseline, new.content)], force=True)
    return PromoteResult(
        written=[str(baseline)],
        sha256=new.sha256,
        replaced=None if old is None or old.sha256 == new.sha256 else old.sha256,
        held_against=_held_against(new.report, old),
        gates=verdicts.verdict(verdicts.results(new.report)) or "none",
    )


def _check_passed(report: Report, path: Path, *, ungated: bool) -> None:
    found = verdicts.results(report)
    if not found and not ungated:
        raise UsageError(
            f"{path} was held against no gate: nobody asked whether it is good enough",
            hint="Hold it against some: rebasin gate REPORT --max-barrier X --json-file FILE, then promote "
            "FILE; or give --ungated",
        )
    if problems := list(contradicted(report)):
        raise CheckpointError(
            f"{path} says of its gates what its figures do not",
            problems=problems,
            hint="It was changed after it was measured: measure it again",
        )
    try:
        verdicts.raise_unmet(found)
    except GateNotMet as error:
        error.message = f"{path} is no baseline: {error.message}"
        raise


def _unchecked(report: Report) -> bool:
    """Whether the endpoints' figures were not looked at; earlier versions tell by the command line alone."""
    try:
        words = shlex.split(report.command)
    except ValueError:
        words = report.command.split()
    return report.data.get("checks") == "skipped" or "--skip-checks" in words


def _replaced(path: Path, report: Report) -> Stored | None:
    """The report that lies there. Raises OutputExists for anything else."""
    if is_missing(path):
        return None
    try:
        old = stored_report(path, error=OutputExists)
    except RebasinError as error:
        hint = "A baseline takes the place of a report alone: name another file, or remove this one"
        raise OutputExists(error.message, problems=error.problems, hint=hint) from None
    if problems := Subject.of(old.report).unlike(Subject.of(report)):
        raise OutputExists(
            f"{path} is the baseline of something else than {report.command or 'this report'}",
            problems=problems,
            hint="Name another file, or remove this one if nothing is held against it any more",
        )
    return old


def _held_against(report: Report, old: Stored | None) -> str:
    """What the report was compared with: several jobs may promote one after the other."""
    held = report.baseline.get("sha256")
    if old is not None and held == old.sha256:
        return "the baseline that it replaces"
    return "another baseline" if held else "no baseline"
