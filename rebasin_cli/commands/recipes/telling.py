"""What others read of a whole run: the gates of all steps, and a statement on its weights."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import RebasinError
from ...reports import _gates
from ...reports import json as json_format
from ...reports._gates import GateResult
from ...reports._markup import code, escape, head, line
from ..job import attesting
from .recipe import Recipe
from .running import BROKEN, MISSED, Outcome, Progress

REPORT = "rebasin.report/"
WEIGHTS = (".safetensors", ".safetensors.index.json")


def gates_of(outcomes: Iterable[Outcome]) -> list[GateResult]:
    """Every gate of every step; a step that failed is one that is not met, `verify` has one of its own."""
    found: list[GateResult] = []
    for outcome in outcomes:
        name, command = outcome.step.name, outcome.step.command.name
        if str(outcome.result.get("schema", "")).startswith(REPORT):
            found += _gates.results(json_format.load(json.dumps(outcome.result)), name)
        elif outcome.ok and command == "verify":
            found.append(GateResult(command, 1.0, "yes", True, "one is a relabelling of the other", name))
        if outcome.status in BROKEN or (outcome.status == MISSED and not any(g.step == name for g in found)):
            found.append(of_failure(outcome.error, command, name))
    return found


def of_failure(error: RebasinError | None, command: str, step: str) -> GateResult:
    return GateResult(command, math.nan, "done", False, str(error).replace("\n", "; "), step)


def junit(outcomes: Sequence[Outcome], error: RebasinError | None, recipe: str) -> str:
    """A suite for every step that has gates, a case for every gate; one for an `error` that is no step's."""
    found = gates_of(outcomes)
    if error is not None and all(gate.met for gate in found):
        found.append(of_failure(error, "rebasin run", recipe))
    return _gates.junit(found, seconds={one.step.name: one.seconds for one in outcomes})


def summary(
    outcomes: Sequence[Outcome], error: RebasinError | None, *, asked: bool
) -> tuple[list[GateResult], list[str]]:
    """Gates and sections of the step summary; GitHub's own (not `asked` for) has the gates of barriers."""
    sections = [steps_table(outcomes)] if outcomes else []
    if error is not None:
        sections.append(escape(f"exit code {error.exit_code}: {error.message}"))
    return gates_of(outcomes) if asked else [], sections


def account(progress: Progress, error: RebasinError | None, about: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a run, for programs; of a dry run `about` has the steps already.

    `exit_code` and `error` are what the program ends with, `stopped_at` is the step that ended it.
    """
    at = progress.at
    code, told = (0, None) if error is None else (error.exit_code, str(error))
    stopped = None if error is None or at is None else at.step.name
    aside = {str(path): str(lies) for path, lies in progress.not_passed.items()}
    found = dict(about) | {"exit_code": code, "error": told, "stopped_at": stopped, "not_passed": aside}
    if "steps" not in about:
        times = {outcome.step.name: round(outcome.seconds, 3) for outcome in progress.outcomes}
        found |= {"steps": [_told(outcome) for outcome in progress.outcomes], "times": times}
    return found


def _told(outcome: Outcome) -> dict[str, Any]:
    told = {
        "step": outcome.step.name,
        "status": outcome.status,
        "command": ["rebasin", *outcome.step.line()],
        "outputs": dict(outcome.outputs),
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
        shown = code(shlex.join(["rebasin", *outcome.step.line()])).replace("|", "\\|")
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
    steps = [{"step": step.name, "command": ["rebasin", *step.line()]} for step in recipe.steps]
    weights = {name: digest for name, digest in made.items() if name.endswith(WEIGHTS)}
    content = attesting.statement_of(
        weights,
        read,
        asked={"recipe": about["recipe"], "set": about["set"], "steps": steps},
        resolved={"downloads": about["downloads"]},
    )
    return attesting.text(content)
