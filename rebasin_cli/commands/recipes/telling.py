"""What others read of a whole run: the gates of all steps, and a statement on its weights."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import GateNotMet, RebasinError
from ...reports import Report
from ...reports.format import title
from ...reports.formats import json as json_format
from ...reports.formats import junit as junit_format
from ...reports.formats.markdown import code, escape, head, line
from ...reports.verdicts import Case
from ...runtime.files import WEIGHTS
from ..verbs import attestation as attesting
from .cases import cases_of
from .recipe import Recipe
from .running import Outcome, Progress


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


def as_json(account: Mapping[str, Any]) -> str:
    """The same as text."""
    return json_format.dump(account)


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
