"""An operation performed in this process, and what it found on the screen."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import typer

from ..registry.operations import Operation
from ..registry.options import WRITES
from ..registry.results import Result
from . import looks, reports
from .screen import put, result, screen

# Results with a way of their own to be shown to a person, by their file and class; what stands beside JSON.
OWN_WAYS: dict[str, Callable[..., None]] = {
    "inspect.InspectResult": looks.inspected,
    "list.ListResult": looks.listed,
    "lab.ListResult": looks.experiments,
    "lab.ShowResult": looks.experiment,
    "lab.RunResult": looks.ran,
    "spec.ListResult": looks.specs,
    "spec.ShowResult": looks.spec_shown,
    "spec.CheckResult": lambda done: put(done.text),
    "spec.ProveResult": looks.spec_proven,
    "spec.InferResult": looks.spec_written,
    "spec.ExplainResult": looks.spec_explained,
    "spec.ImportResult": looks.spec_written,
    "demo.DemoResult": looks.toured,
    "gate.GateResult": lambda done: reports.brief(done.report),
}
BESIDE_JSON: dict[str, Callable[..., None]] = dict.fromkeys(
    ("barrier.BarrierResult", "gate.GateResult"), lambda done: reports.beside_json(done.report)
)


def perform(operation: Operation, asked: Any, command: str) -> Result | None:
    """What the operation finds; it tells on the terminal what it does. Reports name `command` as theirs.

    Of several processes only the first has a result; those that do not work together look alike, and it
    alone writes what they were asked to write.
    """
    quiet, verbose = getattr(asked, "quiet", False), getattr(asked, "verbose", False)
    if operation.together:
        return _together(operation, asked, command, quiet=quiet, verbose=verbose)
    if not (first := _is_first()):
        written = {one.name: one.default for one in operation.options if one.role == WRITES}
        asked = replace(asked, **written)
    with screen(quiet or not first, verbose, command) as listener:
        done: Result = operation.run(asked, listener)
    return done if first else None


def _is_first() -> bool:
    """Whether no other process was started before this one, by torchrun or by who names ranks as it does."""
    alone = os.environ.get("WORLD_SIZE", "1") in ("", "1")
    return alone or os.environ.get("RANK", "0") in ("", "0")


def _together(operation: Operation, asked: Any, command: str, *, quiet: bool, verbose: bool) -> Result | None:
    from ..runtime import devices
    from ..runtime.together import from_environment

    with from_environment(devices.choose(asked.device)) as ranks:
        first = ranks.rank == 0
        with screen(quiet or not first, verbose, command) as listener:
            done: Result = operation.run(asked, listener, ranks)
    return done if first else None


def show(done: Result, asked: Any) -> None:
    """What it found, on stdout: as JSON, or in its own way, or a line a fact."""
    if getattr(asked, "json", False):
        typer.echo(done.json(), nl=False)
        if (beside := BESIDE_JSON.get(_name(done))) and not getattr(asked, "quiet", False):
            beside(done)
    else:
        show_on_screen(done)


def show_on_screen(done: Result) -> None:
    """The same for a person."""
    if (told := done.document()) is not None:
        from ..reports.formats import terminal

        terminal.show(told)
        return
    if (own := OWN_WAYS.get(_name(done))) is not None:
        own(done)
    else:
        result(done.shown())


def _name(done: Result) -> str:
    return f"{type(done).__module__.rpartition('.')[2]}.{type(done).__name__}"
