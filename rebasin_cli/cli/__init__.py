"""The command line: built from the operations of `commands/` (`builder`), shown on the screen.

Other commands are files in this folder: there is no list of them. Nothing heavy is imported here: a command
imports what it needs when it runs.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import CheckpointError, Elsewhere, SpecError, UsageError
from ..registry import operations
from ..registry.numbers import is_number
from ..registry.user_code import outermost
from ..runtime.signals import ending, stoppable
from ..runtime.text import line
from . import builder, run
from ._show import ClickException


class _Interruptible(TyperGroup):
    """Ctrl-C, SIGTERM and SIGHUP as errors with messages of their own: typer would leave without a word.

    And what typer says of arguments is clean: they may be names from outside.
    """

    def make_context(self, info_name: str | None, args: list[str], **kwargs: Any) -> Any:
        with _clean_errors():
            return super().make_context(info_name, args, **kwargs)

    def invoke(self, ctx: typer.Context) -> Any:
        try:
            with stoppable(), _clean_errors(), outermost():
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise ending(interrupt) from interrupt


def _refuse_empty(arguments: Sequence[str]) -> None:
    """An empty name would be the current folder, an empty option none at all: a variable is unset."""
    for number, text in enumerate(arguments, start=1):
        if not text or (text.startswith("--") and text.endswith("=")):
            what = f"{text} is empty" if text else f"argument {number} is empty"
            raise UsageError(
                f"{what}: {' '.join(['rebasin', *arguments[: number - 1]])} …",
                hint="Is a variable unset that it was made from? Leave the option out if it is not meant.",
            )


@contextmanager
def _clean_errors() -> Iterator[None]:
    try:
        yield
    except ClickException as error:
        error.message = line(error.message)
        _annotate(error.format_message())
        raise


def _annotate(message: str) -> None:
    """What is wrong with arguments, for a job's page; typer itself says it to people."""
    from ..reports import _github

    if message and _github.running() and not _github.told_as_one():
        for told in _github.of_error(UsageError(message), message):
            typer.echo(told, err=True)


app = typer.Typer(
    name="rebasin",
    cls=_Interruptible,
    help="git merge for neural networks: align, merge and measure checkpoints trained apart.",
    epilog="Start with: rebasin demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_together: set[str] = set()  # commands that several processes may run at once


def together(command: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a command that processes may run together: they share its work, or it writes nothing."""
    _together.add(command.__name__.strip("_"))
    return command


def _show_version(value: bool) -> None:
    if value:
        from ..version import version

        typer.echo(f"rebasin {version()}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1") and not _runs_together(context):
        refusal = UsageError(
            f"rebasin {context.invoked_subcommand} runs in one process: WORLD_SIZE is "
            f"{os.environ['WORLD_SIZE']}, and all would write the same files",
            hint="Start it without torchrun; only rebasin align runs in several",
        )
        raise refusal if os.environ.get("RANK", "0") == "0" else Elsewhere(str(refusal), refusal.exit_code)


def _runs_together(context: typer.Context) -> bool:
    word = context.invoked_subcommand or ""
    return word in _together or any(one.together or one.only_looks for one in operations.of(word))


for _path in sorted(Path(__file__).parent.glob("[!_]*.py")):
    importlib.import_module(f"{__name__}.{_path.stem}")


def execute(arguments: Sequence[str], *, standalone: bool, shown: Sequence[str]) -> Any:
    """Run a command line; `shown` is what reports name as their command."""
    try:
        _refuse_empty(arguments)
        importlib.import_module(f"{__name__}.reports").refuse_gone([*arguments])
        _refuse_odd_numbers(arguments)
    except UsageError as error:
        if arguments[0] == "run":  # which leaves what it is asked for at every end
            run.refused(_built("run").commands["run"], arguments[1:], error)
        raise
    command = _built(arguments[0] if arguments else "")
    try:
        return command(args=[*arguments], prog_name="rebasin", standalone_mode=standalone, obj=shown)
    except (CheckpointError, SpecError, UsageError) as error:
        from ..commands.recipes.familiar import instead

        if (other := instead(error, arguments)) is error:
            raise
        raise other from None


@functools.cache
def _built(word: str) -> Any:
    """What typer makes of the command or the group of this name; where there is none, of the names of all.

    Of all it takes longer than all that a command does before it imports torch.
    """
    return typer.main.get_command(_of([word]) or whole(options="_REBASIN_COMPLETE" in os.environ))


@functools.cache
def whole(*, options: bool = True) -> typer.Typer:
    """All commands, in the order of the alphabet; those of operations without their `options` where only
    their names are asked for."""
    known = map(_name, [*app.registered_commands, *app.registered_groups])
    every = _of([*known, *operations.words()], options=options)
    assert every is not None
    return every


def _of(words: Sequence[str], *, options: bool = True) -> typer.Typer | None:
    """The commands and groups of these names, in the order of the alphabet; None where there are none."""
    one = copy.copy(app)
    one.registered_commands = [each for each in app.registered_commands if _name(each) in words]
    one.registered_groups = [each for each in app.registered_groups if _name(each) in words]
    for word in operations.words().keys() & set(words):
        builder.add(one, word, options=options)
    one.registered_commands.sort(key=_name)
    one.registered_groups.sort(key=_name)
    return one if one.registered_commands or one.registered_groups else None


def _refuse_odd_numbers(arguments: Sequence[str]) -> None:
    """What typer would read as Python does, and no person: `0_05` as 5. As gates and recipes read numbers."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        flag, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if equals and _is_odd(value) and flag in _numeric(tuple(arguments[:2])):
            raise UsageError(f"{flag} {value!r}: not a number", hint="Write it in plain digits: 1000, 0.05")


def _is_odd(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return not is_number(text)
    return False


def _numeric(words: tuple[str, ...]) -> set[str]:
    """The options of a command that take numbers."""
    from ._vocabulary import commands_of

    if of := operations.of(words[0]) if words else ():
        one = next((one for one in of if one.words == words[: len(one.words)]), None)
        return {option.flag for option in one.options if option.type in (int, float)} if one else set()
    known = {command.words: command for command in commands_of(app)}
    command = known.get(words) or known.get(words[:1])
    return {p.flag for p in command.parameters if p.kind in (int, float)} if command else set()


def _name(registered: Any) -> str:
    """What a command or a group was registered as."""
    if isinstance(registered, typer.models.TyperInfo):
        return registered.name if isinstance(registered.name, str) else registered.typer_instance.info.name
    return registered.name or registered.callback.__name__.replace("_", "-")
