"""What became of steps, as gates and cases: for documents, for the log, for the exit code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ...errors import RebasinError, UsageError
from ...reports import verdicts
from ...reports.verdicts import Case, Ended, GateResult
from ..verbs import since
from .running import FAILED, MISSED, NOT_RUN, Outcome


def gates_of(outcomes: Iterable[Outcome]) -> list[GateResult]:
    """Every gate of every step that has any."""
    return [case for outcome in outcomes for case in _cases(outcome, "") if isinstance(case, GateResult)]


def cases_of(
    outcomes: Sequence[Outcome], error: RebasinError | None = None, line: str = "rebasin run"
) -> list[Case]:
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
    return [*(_ended(error, line, step, status) for step in whole), *found]


def _cases(outcome: Outcome, why: str) -> list[Case]:
    step, command = outcome.step.name, f"rebasin {outcome.step.command.name}"
    if outcome.status == NOT_RUN:
        return [Ended(command, why, step, skipped=True)]
    found: list[Case] = []
    if (report := outcome.report) is not None:
        held = since.of_missed(report, outcome.step.options.get("baseline"))
        found += verdicts.results(report, step, where=outcome.step.where, baseline=held)
    elif isinstance(gates := outcome.result.get("gates"), list):  # in a word where they are another's
        found += verdicts.of_values(gates, step, where=outcome.step.where)
    if outcome.ok and outcome.step.command.name == "verify":
        one = "one is a relabelling of the other"
        found.append(GateResult(command, 1.0, "yes", True, one, step, outcome.step.where))
    if outcome.ok:
        return found or [Ended(command, "; ".join([outcome.status, *_written(outcome)]), step)]
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


def _written(outcome: Outcome) -> list[str]:
    return [f"written: {', '.join(outcome.outputs)}"] if outcome.outputs else []
