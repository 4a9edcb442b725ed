"""From an operation's declaration to its command: typer gets a function with the signature that it describes.

Built only for the command that is asked for: what is built of all takes longer than all that one does before
it imports torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, Optional

import typer

from ..registry import operations
from ..registry.operations import Operation
from ..registry.options import REQUIRED, Option
from . import help as helping
from . import run as recipes

# What uses the screen all the while it runs, and says when what is imported.
PERFORMED_ALONE: dict[str, Callable[[dict[str, Any]], None]] = {"run": recipes.perform}


def add(app: typer.Typer, word: str, *, options: bool = True) -> None:
    """The operation of this name, or the group of them, as a command of `app`; without `options` its name."""
    if not operations.words()[word]:
        (one,) = operations.of(word)
        how: dict[str, Any] = {
            "rich_help_panel": one.panel,
            "cls": helping.of(one),
            "hidden": bool(one.hidden),
        }
        app.command(word, **how)(command(one, options=options))
        return
    help, panel = operations.group(word)
    group = typer.Typer(name=word, help=help, no_args_is_help=True)
    for one in operations.of(word):
        group.command(one.words[-1], cls=helping.of(one))(command(one, options=options))
    app.add_typer(group, rich_help_panel=panel)


def command(operation: Operation, *, options: bool = True) -> Callable[..., None]:
    """What typer makes a command of: its parameters are the options of the operation."""
    known = operation.options if options else ()

    def call(context: typer.Context, help_all: bool, **given: Any) -> None:
        told = {name: tuple(value or ()) if of[name].many else value for name, value in given.items()}
        run(operation, told, shlex.join(["rebasin", *context.find_root().obj]))

    of = {option.parameter: option for option in known}
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *map(_parameter, known), _help_all(hidden=not (options and operation.common))]
    call.__name__ = operation.words[-1]
    call.__doc__ = "\n\n".join(" ".join(part.split()) for part in operation.help.split("\n\n"))
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def run(operation: Operation, given: dict[str, Any], command: str) -> None:
    """Run the operation with what was given, show what it finds; typer.Exit where the answer is no."""
    from .perform import by_first, perform, show
    from .reports import warn

    if (own := PERFORMED_ALONE.get(operation.name)) is not None:
        by_first(operation, given, own)
        return
    asked = operation.made(given)
    done = perform(operation, asked, command)
    if done is None:
        return
    show(done, asked)
    warn(done.warnings())
    done.end()
    if not done.yes:
        raise typer.Exit(1)


def _parameter(option: Option) -> Parameter:
    kind: Any = str if option.kind == "bytes" else option.type
    default: Any = Parameter.empty if option.default is REQUIRED else option.default
    if option.count:
        kind = tuple.__class_getitem__((kind,) * option.count)
    elif option.many:
        kind = list.__class_getitem__(kind)
        default = None if default == () else default
    if option.off and option.within:  # what a method or a format says by itself where nobody says it
        default = None
    hint = Optional[kind] if default is None else kind  # noqa: UP045 (made at run time)
    told = typer.Argument if option.positional else typer.Option
    info = told(*_spelt(option), **_said(option))
    return Parameter(
        option.parameter, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info]
    )


def _help_all(*, hidden: bool) -> Parameter:
    told = "Show all options of this command and exit."
    info = typer.Option("--help-all", is_eager=True, callback=helping.show_all, help=told, hidden=hidden)
    return Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info])


def _spelt(option: Option) -> list[str]:
    if option.positional:
        return []
    first = f"{option.flag}/{option.off}" if option.off else option.flag
    return [first, *option.also]


def _said(option: Option) -> dict[str, Any]:
    said: dict[str, Any] = {"metavar": option.metavar, "help": option.help or None}
    if option.choices:
        choices = list(map(str, option.choices))
        said |= {"autocompletion": lambda: choices, "metavar": option.metavar or "|".join(choices)}
    elif option.kind in operations.KINDS:
        said |= {"autocompletion": lambda: operations.known(option.kind)}
    if option.type in (int, float) and option.kind != "bytes":
        said |= {"min": option.min, "max": option.max}
    if option.positional:
        return said
    shown = option.shown and option.default not in (None, (), REQUIRED) and option.type is not bool
    return said | {"rich_help_panel": option.panel or None, "show_default": shown}
