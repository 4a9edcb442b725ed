"""What a step of a recipe may say, and a step performed; what is no operation yet runs as a line."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter as Argument
from inspect import signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer

from ..commands.recipes.familiar import instead
from ..commands.recipes.running import Performed
from ..commands.recipes.steps import Step
from ..commands.recipes.vocabulary import Command, Parameter, role_of
from ..errors import CheckpointError, GateNotMet, Interrupted, RebasinError, SpecError, UsageError
from ..registry import Registry, operations
from ..registry.options import WRITES
from ..registry.results import plain
from . import app, execute
from . import perform as performing
from ._groups import GATES, OF_FORMAT

FORMATS = [name.replace("-", "_") for name in Registry("reports", "report format").names()]
# They make no part of a recipe: a tour, a recipe itself, what is there to name, and git's own.
NOT_STEPS = ("demo", "run", "list", "merge-driver")


@functools.cache
def vocabulary() -> dict[str, Command]:
    """The commands that a step may run, by their words."""
    found = {command.name: command for command in commands_of(app)}
    found |= {name: Command.of(one) for name, one in operations.every().items() if one.is_step}
    return {name: command for name, command in sorted(found.items()) if name not in NOT_STEPS}


def commands_of(group: typer.Typer, above: tuple[str, ...] = ()) -> Iterator[Command]:
    """All commands of the command line, with their options."""
    for registered in group.registered_commands:
        callback = registered.callback
        word = registered.name or callback.__name__.strip("_").replace("_", "-")
        help = (callback.__doc__ or "").strip().partition("\n")[0]
        yield Command((*above, word), help, tuple(_parameters(callback)))
    for below in group.registered_groups:
        yield from commands_of(below.typer_instance, (*above, below.name or below.typer_instance.info.name))


def _parameters(callback: Any) -> Iterator[Parameter]:
    hints = None if hasattr(callback, "__signature__") else get_type_hints(callback, include_extras=True)
    for name, argument in signature(callback).parameters.items():
        hint = argument.annotation if hints is None else hints[name]
        told = [part for part in get_args(hint)[1:] if hasattr(part, "param_decls")]
        if not told:  # typer's own context
            continue
        yield _parameter(name, hint, told[0], argument.default)


def _parameter(name: str, hint: Any, told: Any, default: Any) -> Parameter:
    kind, many, count = _kind(get_args(hint)[0])
    flags, off = _flags(name, told, kind, default)
    long = next((flag for flag in flags if flag.startswith("--")), "")
    key = long.removeprefix("--").replace("-", "_") or name
    written = name.startswith(OF_FORMAT) or (kind == "path" and key in FORMATS)
    role = role_of(key, kind, written=written, argument=isinstance(told, typer.models.ArgumentInfo))
    return Parameter(
        key,
        kind,
        long,
        off,
        tuple(flag for flag in flags if flag != long),
        many,
        count,
        default is Argument.empty,
        told.min,
        told.max,
        role,
        (told.help or "").strip(),
        str(default) if role == WRITES and isinstance(default, str | Path) else None,
        name in GATES,
    )


def _kind(hint: Any) -> tuple[Any, bool, int]:
    """The type of one value, whether there may be several, and how many there are at once if so."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is list:
        return _kind(get_args(hint)[0])[0], True, 0
    if get_origin(hint) is tuple:
        return _kind(get_args(hint)[0])[0], True, len(get_args(hint))
    return ("path" if hint is Path else hint), False, 0


def _flags(name: str, told: Any, kind: Any, default: Any) -> tuple[list[str], str]:
    """The flags of an option, none for an argument, and the one that says no."""
    if isinstance(told, typer.models.ArgumentInfo):
        return [], ""
    written = [told.default, *(told.param_decls or ())]  # typer takes the first of them for a default
    flags = [text for text in written if isinstance(text, str) and text.startswith("-")]
    plain = [text.partition("/")[0] for text in flags] or [f"--{name.replace('_', '-')}"]
    off = next((text.partition("/")[2] for text in flags if "/" in text), "")
    if kind is bool and not flags and default is None:
        off = f"--no-{plain[0].removeprefix('--')}"
    return plain, off


def perform(step: Step, more: Mapping[str, Any]) -> Performed:
    """Run a step in this process, with its result as values.

    What a user's mistake or a gate ends it with is given back; Ctrl-C and bugs go through.
    """
    line = step.line(**more)
    try:
        # What reports name as their command: the same whether something lay there before or not.
        named = [word for word in line if word not in ("--force", "--resume")]
        return _operation(step, more, named) if step.command.operation is not None else _command(line, named)
    except Interrupted:
        raise
    except (CheckpointError, SpecError, UsageError) as error:
        return Performed({}, instead(error, line))
    except RebasinError as error:
        return Performed({}, error)


def _operation(step: Step, more: Mapping[str, Any], named: Sequence[str]) -> Performed:
    operation, asked = step.command.operation, step.asked(**more)
    assert operation is not None
    done = performing.perform(operation, asked, shlex.join(["rebasin", *named]))
    if done is None:
        return Performed({})
    error: RebasinError | None = None if done.yes else GateNotMet(f"rebasin {operation.name} answers no")
    try:
        done.end()
    except GateNotMet as missed:
        error = missed
    return Performed(plain(done.values()), error)


def _command(line: Sequence[str], named: Sequence[str]) -> Performed:
    """A command that is no operation yet: as a command line with --json."""
    takes_json = any(p.key == "json" for p in vocabulary_of(line).parameters)
    words = [*line, "--json"] if takes_json else list(line)
    shown = io.StringIO()
    error: RebasinError | None = None
    try:
        with contextlib.redirect_stdout(shown):
            code = execute(words, standalone=False, shown=named)
        if code:
            error = GateNotMet(f"rebasin {line[0]} answers no")
    except Interrupted:
        raise
    except RebasinError as failed:
        error = failed
    except Exception as failed:
        if not hasattr(failed, "format_message"):  # typer's own, on what is typed
            raise
        error = UsageError(failed.format_message())
    return Performed(_values(shown.getvalue(), takes_json), error)


def vocabulary_of(line: Sequence[str]) -> Command:
    """The command that a line runs."""
    known = vocabulary()
    return known.get(" ".join(line[:2])) or known[line[0]]


def _values(text: str, is_json: bool) -> dict[str, Any]:
    if not text.strip():
        return {}
    if not is_json:
        return {"text": text}
    try:
        found = json.loads(text)
    except ValueError:  # a dry run, or what a command prints beside its JSON
        return {"text": text}
    return found if isinstance(found, dict) else {"values": found}
