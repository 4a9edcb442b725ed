"""What others read of a whole run: the gates of all steps, and a statement on its weights."""

from __future__ import annotations

import math
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...checkpoints import digests
from ...errors import GateNotMet, RebasinError, UsageError
from ...reports import Report, verdicts
from ...reports.format import title
from ...reports.formats import junit as junit_format
from ...reports.formats.markdown import code, escape, head, line
from ...reports.verdicts import Case, Ended, GateResult
from ...runtime.files import WEIGHTS
from ..verbs import attestation as attesting
from ..verbs import before
from ..verbs.attestation import versions
from .recipe import Recipe
from .records import digest_of
from .runner import FAILED, MISSED, NOT_RUN, Outcome, Progress

DIGITS = 16


def junit(outcomes: Sequence[Outcome], error: RebasinError | None, recipe: str) -> str:
    """A suite for every step, a case for every gate; one of its own for an `error` that is no step's."""
    seconds = {one.step.name: one.seconds for one in outcomes}
    return junit_format.junit(cases_of(outcomes, error), name=f"rebasin run {recipe}", seconds=seconds)


def summary(outcomes: Sequence[Outcome], error: RebasinError | None) -> tuple[list[Case], list[str]]:
    """What the step summary tells: gates and what failed, then the steps and the figures of every barrier."""
    reports = [(one, one.report) for one in outcomes if one.report is not None]
    figures = [_figures(outcome, report) for outcome, report in reports]
    where = error.closing if isinstance(error, GateNotMet) else ()  # a crash is told with all that it says
    told = [escape(text) for text in where if not text.startswith(" ")]
    return cases_of(outcomes, error), [*told, *([steps_table(outcomes)] if outcomes else []), *figures]


def _figures(outcome: Outcome, report: Report) -> str:
    from ...reports import barrier
    from ...reports.formats import markdown  # heavy, and broken where torch is

    told = [
        f"### {escape(outcome.step.name)}: {escape(title(report))}",
        *markdown.sections(barrier.measured(report)),
    ]
    return "\n\n".join(told)


def account(progress: Progress, error: RebasinError | None, about: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a run, for programs; of a dry run `about` has the steps already.

    `exit_code` and `error` are what the program ends with, `stopped_at` is the step that ended it.
    """
    at = progress.stopped
    code, told = (0, None) if error is None else (error.exit_code, str(error))
    stopped = None if error is None or at is None else at.step.name
    aside = {str(path): str(lies) for path, lies in progress.not_passed.items()}
    found = dict(about) | {"exit_code": code, "error": told, "stopped_at": stopped, "not_passed": aside}
    if "steps" not in about:
        times = {outcome.step.name: round(outcome.seconds, 3) for outcome in progress.outcomes}
        found |= {"steps": [_told(outcome, aside) for outcome in progress.outcomes], "times": times}
    return found


def _told(outcome: Outcome, aside: Mapping[str, str]) -> dict[str, Any]:
    told = {
        "step": outcome.step.name,
        "status": outcome.status,
        "command": outcome.step.shown(),
        "outputs": {aside.get(name, name): digest for name, digest in outcome.outputs.items()},
        "result": dict(outcome.result),
    }
    return told | ({"error": str(outcome.error)} if outcome.error else {})


def steps_table(outcomes: Sequence[Outcome]) -> str:
    """The steps as a Markdown table."""
    rows = head(["step", "result", "command"])
    for outcome in outcomes:
        shown = code(shlex.join(outcome.step.shown())).replace("|", "\\|")
        rows.append(line([escape(outcome.step.name), outcome.status, shown]))
    return "\n".join(rows)


def statement(recipe: Recipe, outcomes: Sequence[Outcome], about: Mapping[str, Any]) -> str:
    """On the weights of the run: made of what it read and did not make itself, by these command lines.

    Digests are those at which files were read and written. Reports hold times, and are no subject of it.
    """
    made = {name: digest for outcome in outcomes for name, digest in outcome.outputs.items()}
    own = {Path(name).absolute() for name in made}
    read = {name: digest for outcome in outcomes for name, digest in outcome.reads.items()}
    read = {name: digest for name, digest in read.items() if Path(name).absolute() not in own}
    read |= {about["recipe"]: about["recipe_sha256"]}
    steps = [{"step": step.name, "command": step.shown()} for step in recipe.steps]
    weights = {name: digest for name, digest in made.items() if name.endswith(WEIGHTS)}
    content = attesting.statement_of(
        weights,
        read,
        asked={key: about[key] for key in ("recipe", "set", "untrusted") if key in about} | {"steps": steps},
        resolved={"downloads": about["downloads"]},
    )
    return attesting.text(content)


def gates_of(outcomes: Iterable[Outcome]) -> list[GateResult]:
    """Every gate of every step that has any."""
    return [case for outcome in outcomes for case in _cases(outcome, "") if isinstance(case, GateResult)]


def cases_of(outcomes: Sequence[Outcome], error: RebasinError | None = None) -> list[Case]:
    """The gates of every step; of one without gates what became of it; and an `error` that is no outcome's.

    That one is the case of its step, where it has one: it was refused before any was run.
    """
    broken = next((one for one in outcomes if not one.ok and one.status != NOT_RUN), None)
    if broken is not None or error is None:
        why = f"not run, since step {broken.step.name} ended before: {broken.status}" if broken else "not run"
        return [case for outcome in outcomes for case in _cases(outcome, why)]
    status = "refused" if isinstance(error, UsageError) else FAILED
    found: list[Case] = []
    for outcome in outcomes:
        step, command = outcome.step.name, f"rebasin {outcome.step.command.name}"
        if step == error.step:
            found.append(_ended(error, command, step, status))
        else:
            found += _cases(outcome, f"not run, since the run ended before any step: {status}")
    whole = [] if any(isinstance(case, Ended) and case.error for case in found) else [""]
    return [*(_ended(error, "rebasin run", step, status) for step in whole), *found]


def _cases(outcome: Outcome, why: str) -> list[Case]:
    step, command = outcome.step.name, f"rebasin {outcome.step.command.name}"
    if outcome.status == NOT_RUN:
        return [Ended(command, why, step, skipped=True)]
    found: list[Case] = []
    if (report := outcome.report) is not None:
        held = before.of_missed(report, outcome.step.options.get("baseline"))
        found += verdicts.results(report, step, where=outcome.step.where, baseline=held)
    elif isinstance(gates := outcome.result.get("gates"), list):  # in a word where they are another's
        found += verdicts.of_values(gates, step, where=outcome.step.where)
    if outcome.ok and outcome.step.command.name == "verify":
        one = "one is a relabelling of the other"
        found.append(GateResult(command, 1.0, "yes", True, one, step, outcome.step.where))
    if outcome.ok:
        written = f"; written: {', '.join(outcome.outputs)}" if outcome.outputs else ""
        return found or [Ended(command, outcome.status + written, step)]
    if outcome.status != MISSED:
        found.append(_ended(outcome.error, command, step, outcome.status))
    elif all(gate.met for gate in found):
        said = str(outcome.error).replace("\n", "; ")
        found.append(GateResult(command, math.nan, "done", False, said, step, outcome.step.where))
    return found


def _ended(error: RebasinError | None, name: str, step: str, status: str) -> Ended:
    if error is None:
        return Ended(name, status, step, "RebasinError", status=status)
    first, *rest = str(error).split("\n")
    return Ended(name, first, step, error.kind or type(error).__name__, details=tuple(rest), status=status)


def of(recipe: Recipe) -> str:
    """`ASKED-INPUTS`, two times 16 digits of 0-9a-f, of which the first alone finds the nearest of before.

    ASKED is of all command lines, of the versions of rebasin, Python and the libraries that compute, and of
    the kind of machine; INPUTS of the content of all files that steps read and that none of them makes, and
    of gates, by which nothing is measured. It only says where to look: what is found there is believed record
    by record, by its own digests. Folders of data do not count, since their times are new on every machine.
    CheckpointError for a file that is gone.
    """
    made = {path.absolute() for step in recipe.steps for path in step.files}
    asked = {
        "versions": {**versions(), "python": sys.version_info[:2]},
        "machine": [platform.system(), platform.machine()],
        "lines": [step.measuring().line() for step in recipe.steps],
    }
    gates = [step.gates for step in recipe.steps if step.gates]
    read = dict.fromkeys(path for step in recipe.steps for path in step.reads)
    inputs = {
        str(path): digests.of_path(path) for path in read if path.absolute() not in made and path.exists()
    }
    return f"{_digits(asked)}-{_digits([gates, inputs])}"


def _digits(facts: Any) -> str:
    return digest_of(facts)[:DIGITS]
