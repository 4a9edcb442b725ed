"""Gates of a report, whenever they are judged: right after measuring, or of a report that was stored."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ...checkpoints import digests
from ...errors import CheckpointError, RebasinError, UsageError
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
from ...runtime import files
from ...runtime.files import Destinations, is_missing, meant
from ...runtime.text import clean
from ...session.listener import Listener
from ...session.outcomes import ACCEPT, REFUSE
from . import outputs
from .outputs import Written, stored_report, write_reports

_known: ContextVar[Report | None] = ContextVar("_known", default=None)
SHOWN = 12  # digits of a digest
PATIENCE = 10  # seconds for git
# Nothing is locked, fetched or asked for; a name is a name, whatever it holds. What a repository says of
# programs is not heard: a folder that was checked out may be made like a repository, with its own settings.
QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
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
    return outputs.written_of(asked, listener, summary=summary, reads=reads)


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


QUIET |= {"GIT_LITERAL_PATHSPECS": "1"}
DEAF = {"safe.bareRepository": "explicit", "log.showSignature": "false", "core.fsmonitor": "false"}
DEAF |= {"gpg.program": "false", "gpg.ssh.program": "false", "gpg.x509.program": "false"}
DEAF |= {"core.hooksPath": os.devnull, "protocol.allow": "never"}


def account(path: Path) -> str:
    """A file with the beginning of its SHA-256, and since when it has this content.

    A file that was checked out has the time of the checkout: where git has it as it is, the commit tells.
    """
    try:
        status = path.stat()
        return _account(path.absolute(), str(path), status.st_mtime_ns)
    except (OSError, RebasinError):
        return f"{clean(path)}, which is gone"


def of_missed(report: Report, baseline: str | Path | None) -> str:
    """The account of the `baseline` that a report was held against, "" where all its gates are met."""
    missed = any(not gate.met for gate in report.gates)
    return account(Path(baseline)) if missed and baseline else ""


@cache
def _account(path: Path, shown: str, modified: int) -> str:
    told = f"{clean(shown)}, sha256 {digests.of_file(path)[:SHOWN]}…"
    if found := _in_git(path):
        return f"{told}, {found}"
    when = datetime.fromtimestamp(modified / 1e9, UTC)
    return f"{told}, last written {when:%Y-%m-%d %H:%M} UTC by the file's own time"


def _in_git(path: Path) -> str:
    """Since which commit it is as it is; "" where git does not know it, or as something else.

    The first commit of a shallow clone seems to bring every file: it may be older.
    """
    folder, name = path.parent, f"./{path.name}"
    known = _git(folder, "rev-parse", "--is-shallow-repository", f"HEAD:{name}").split()
    if len(known) != 2 or known[1] != _blob(path, len(known[1])):
        return ""
    commit, day, *parents = _git(folder, "log", "-1", "--format=%h %cs %p", "--", name).split() or ("", "")
    if not commit:
        return ""
    older = known[0] == "true" and not parents
    return f"in git since {day}{' or before' * older} (commit {commit}{', a shallow clone' * older})"


def _blob(path: Path, digits: int) -> str:
    """The name that git gives to this content."""
    content = files.content(path)
    kind = hashlib.sha1 if digits == 40 else hashlib.sha256
    return kind(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _git(folder: Path, *words: str) -> str:
    settings = [word for name, value in DEAF.items() for word in ("-c", f"{name}={value}")]
    try:
        ended = subprocess.run(
            ["git", "--no-pager", *settings, "-C", str(folder), *words],
            env=os.environ | QUIET,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout if ended.returncode == 0 else ""


@contextmanager
def measured(report: Report | None) -> Iterator[None]:
    """Whatever is measured within was measured before, and found to be this; None measures."""
    token = _known.set(report)
    try:
        yield
    finally:
        _known.reset(token)


def known() -> Report | None:
    """What was measured before, None where that is still to be done."""
    return _known.get()
