"""A step of a run performed, and what the run shows of it: as soon as it is done, or the plan of all."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from ..commands.recipes.familiar import instead
from ..commands.recipes.runner import Performed
from ..commands.recipes.steps import Step
from ..errors import CheckpointError, GateNotMet, Interrupted, RebasinError, SpecError, UsageError
from ..registry.results import plain
from ..registry.user_code import outermost
from ..runtime.signals import ending
from . import reports
from .perform import perform as screened
from .perform import show_on_screen
from .screen import numbers, put, result


def perform(step: Step, more: Mapping[str, Any]) -> Performed:
    """Run a step in this process, with its result as values.

    What a user's mistake, code of a user's, or a gate ends it with is given back; Ctrl-C and bugs go through.
    """
    line = step.line(**more)
    try:
        with outermost():
            return _performed(step, more, line)
    except KeyboardInterrupt as interrupt:
        raise ending(interrupt) from interrupt
    except Interrupted:
        raise
    except (CheckpointError, SpecError, UsageError) as error:
        return Performed({}, instead(error, line))
    except RebasinError as error:
        return Performed({}, error)


def _performed(step: Step, more: Mapping[str, Any], line: Sequence[str]) -> Performed:
    # What reports name as their command: the same whether something lay there before or not.
    named = [word for word in line if word not in ("--force", "--resume")]
    operation, asked = step.command.operation, step.asked(**more)
    done = screened(operation, asked, shlex.join(["rebasin", *named]))
    if done is None:
        return Performed({})
    error: RebasinError | None = None if done.yes else GateNotMet(f"rebasin {operation.name} answers no")
    try:
        done.end()
    except GateNotMet as missed:
        error = missed
    return Performed(plain(done.values()), error)


def tell(outcome: Any, *, recipe: Path, stdout: Any, as_json: bool, quiet: bool) -> None:
    """A step that was done; in brief, for the log, where `stdout` is for JSON."""
    from ..reports.verdicts import results

    if outcome.report is not None:
        reports.warn(results(outcome.report, outcome.step.name, where=outcome.step.where), recipe)
    if not as_json:
        with redirect_stdout(stdout):
            _show(outcome)
    elif not quiet:
        _show(outcome, brief=True)


def _show(outcome: Any, *, brief: bool = False) -> None:
    """Its report, its figures or its facts, below a line with its name.

    Of a report that is shown in brief, or that nothing was measured anew for, the figures and gates alone.
    """
    put(f"── {outcome.step.name}: {outcome.status}")
    operation, unchanged = outcome.step.command.operation, outcome.status == "unchanged"
    if (report := outcome.report) is not None:
        if brief or unchanged:
            reports.brief(report)
        else:
            reports.whole(report)
    elif outcome.result and operation.figures:
        show_on_screen(operation.result(numbers(outcome.result)))
    elif unchanged:
        result({"written": list(outcome.outputs) or None})
    elif outcome.result:
        shown = ("written", "spec", "match", "proof", "repair", "answer", "text")
        result({key: value for key, value in outcome.result.items() if key in shown})


def show_plan(steps: Iterable[Mapping[str, Any]]) -> None:
    """The command line of every step, its files, and its own plan where it has one."""
    for step in steps:
        put(f"── {step['step']}: {step['state']}")
        typer.echo(shlex.join(step["command"]))  # whole, however long it is
        result({key: step[key] for key in ("reads", "writes") if step[key]} | step.get("plan", {}))
