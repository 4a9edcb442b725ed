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
from .running import FAILED, MISSED, Outcome

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
        if outcome.status == FAILED or (outcome.status == MISSED and not any(g.step == name for g in found)):
            found.append(of_failure(outcome.error, command, name))
    return found


def of_failure(error: RebasinError | None, command: str, step: str) -> GateResult:
    return GateResult(command, math.nan, "done", False, str(error).replace("\n", "; "), step)


def junit(outcomes: Sequence[Outcome]) -> str:
    """A suite for every step that has gates, a case for every gate."""
    return _gates.junit(gates_of(outcomes), seconds={one.step.name: one.seconds for one in outcomes})


def refused(error: RebasinError, recipe: str) -> str:
    """JUnit of a run that ended before any step was run."""
    return _gates.junit([of_failure(error, "rebasin run", recipe)])


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
