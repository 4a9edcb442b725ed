"""What a run shows of its steps: each as soon as it is done, or the plan of all."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from . import reports
from ._show import numbers, put, result
from .perform import show_on_screen


def tell(outcome: Any, *, recipe: Path, stdout: Any, as_json: bool, quiet: bool) -> None:
    """A step that was done; in brief, for the log, where `stdout` is for JSON."""
    from ..reports._gates import results

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
    elif outcome.result and operation is not None and operation.figures:
        show_on_screen(operation.result(numbers(outcome.result)))
    elif unchanged:
        result({"written": list(outcome.outputs) or None}, False)
    elif outcome.result:
        shown = ("written", "spec", "match", "proof", "repair", "answer", "text")
        result({key: value for key, value in outcome.result.items() if key in shown}, False)


def show_plan(steps: Iterable[Mapping[str, Any]]) -> None:
    """The command line of every step, its files, and its own plan where it has one."""
    for step in steps:
        put(f"── {step['step']}: {step['state']}")
        typer.echo(shlex.join(step["command"]))  # whole, however long it is
        result({key: step[key] for key in ("reads", "writes") if step[key]} | step.get("plan", {}), False)
