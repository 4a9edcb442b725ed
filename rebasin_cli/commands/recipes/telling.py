"""What others read of a whole run: the gates of all steps, and a statement on its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...reports import _gates
from ...reports import json as json_format
from ...reports._gates import GateResult
from ...reports._markup import code, escape, head, line
from ..job import attesting
from .cache import Cache
from .recipe import Recipe
from .running import FAILED, MISSED, Outcome

REPORT = "rebasin.report/"


def gates_of(outcomes: Iterable[Outcome]) -> list[GateResult]:
    """Every gate of every step; a step that failed is one that is not met."""
    found: list[GateResult] = []
    for outcome in outcomes:
        name = outcome.step.name
        if str(outcome.result.get("schema", "")).startswith(REPORT):
            found += _gates.results(json_format.load(json.dumps(outcome.result)), name)
        elif outcome.status in (MISSED, FAILED):
            message = str(outcome.error).replace("\n", "; ")
            found.append(GateResult(outcome.step.command.name, math.nan, "done", False, message, name))
    return found


def junit(outcomes: Sequence[Outcome]) -> str:
    """A suite for every step that has gates, a case for every gate."""
    return _gates.junit(gates_of(outcomes), seconds={one.step.name: one.seconds for one in outcomes})


def steps_table(outcomes: Sequence[Outcome]) -> str:
    """The steps as a Markdown table."""
    rows = head(["step", "result", "command"])
    for outcome in outcomes:
        shown = code(" ".join(["rebasin", *outcome.step.line()]))
        rows.append(line([escape(outcome.step.name), outcome.status, shown]))
    return "\n".join(rows)


def statement(recipe: Recipe, outcomes: Sequence[Outcome], cache: Cache, about: Mapping[str, Any]) -> str:
    """On all files of the run: made of what it read and did not make itself, by these command lines."""
    made = [Path(name) for outcome in outcomes for name in outcome.outputs]
    own = {path.absolute() for path in made}
    read = [path for step in recipe.steps for path in step.reads if path.absolute() not in own]
    steps = [{"step": step.name, "command": ["rebasin", *step.line()]} for step in recipe.steps]
    content = attesting.statement(
        made,
        [*dict.fromkeys(read), Path(about["recipe"])],
        asked={"recipe": about["recipe"], "set": about["set"], "steps": steps},
        resolved={"downloads": about["downloads"]},
        digest=cache.digest,
    )
    return attesting.text(content)
