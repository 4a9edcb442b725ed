"""The command line: built from the operations of `commands/` (`builder`), their results shown on the screen.

Nothing heavy is imported here: an operation is imported when it runs.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import CheckpointError, SpecError, UsageError
from ..registry import operations
from ..registry.options import is_number
from ..registry.user_code import outermost
from ..runtime import launchers
from ..runtime.signals import ending, stoppable
from ..runtime.text import line
from . import builder, reports, run
from .screen import ClickException


class _Interruptible(TyperGroup):
    """Ctrl-C, SIGTERM and SIGHUP as errors with messages of their own: typer would leave without a word.

    And what typer says of arguments is clean: they may be names from outside.
    """

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **more: Any) -> Any:
        given = [*args]
        with _clean_errors(given):
            context = super().make_context(info_name, args, parent, **more)
        context.meta[_GIVEN] = given
        return context

    def invoke(self, ctx: Any) -> Any:
        try:
            with stoppable(), _clean_errors(ctx.meta[_GIVEN]), outermost():
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


def _refuse_files_as_options(arguments: Sequence[str]) -> None:
    """Of `*.pt` a file called -ours.pt would be `-o urs.pt`; behind -- it is a file."""
    if arguments and arguments[0] == "merge-driver":  # which git calls with names that it has
        return
    for text in takewhile(lambda text: text != "--", arguments):
        if len(text) > 2 and text[0] == "-" != text[1] and os.path.lexists(text):
            raise UsageError(f"{text} is a file here, and reads as options", hint=f"Write ./{text}")


_GIVEN = "rebasin.given"  # the arguments as they were typed


@contextmanager
def _clean_errors(given: Sequence[str]) -> Iterator[None]:
    """What is wrong with arguments in one clean line, and which of them is a file that reads as an option."""
    try:
        yield
    except ClickException as error:
        files = [text for text in given if text.startswith("-") and os.path.lexists(text)]
        told = f" ({files[0]} is a file here: write ./{files[0]})" if files else ""
        error.message = line(f"{error.message}{told}")
        _annotate(error.format_message())
        raise


def _annotate(message: str) -> None:
    """What is wrong with arguments, for a job's page; typer itself says it to people."""
    from ..reports import github

    if message and github.running() and not github.told_as_one():
        for told in github.of_error(UsageError(message), message):
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


def _show_version(value: bool) -> None:
    if value:
        from ..version import version

        typer.echo(f"rebasin {version()}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The options that are none of a command's."""


def execute(arguments: Sequence[str], *, standalone: bool, shown: Sequence[str]) -> Any:
    """Run a command line; `shown` is what reports name as their command.

    Where it is to run with other processes, and cannot begin here, these are told.
    """
    try:
        return _executed(arguments, standalone=standalone, shown=shown)
    except UsageError as error:
        _excuse(arguments, str(error), error.exit_code)
        raise
    except SystemExit as stop:
        if stop.code == UsageError.exit_code:
            _excuse(arguments, "its command line cannot be read", UsageError.exit_code)
        raise


def _excuse(arguments: Sequence[str], message: str, code: int) -> None:
    if launchers.found() is None:
        return
    of = operations.of(arguments[0]) if arguments else ()
    if launchers.by_torchrun() or any(one.together for one in of):
        from ..runtime.devices import excuse

        excuse(message.partition("\n")[0], code)


def _executed(arguments: Sequence[str], *, standalone: bool, shown: Sequence[str]) -> Any:
    try:
        _refuse_empty(arguments)
        _refuse_files_as_options(arguments)
        reports.refuse_gone([*arguments])
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
    every = _of([*operations.words()], options=options)
    assert every is not None
    return every


def _of(words: Sequence[str], *, options: bool = True) -> typer.Typer | None:
    """The commands and groups of these names, in the order of the alphabet; None where there are none."""
    one = copy.copy(app)
    one.registered_commands, one.registered_groups = [], []
    for word in sorted(operations.words().keys() & set(words)):
        builder.add(one, word, options=options)
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
    of = operations.of(words[0]) if words else ()
    one = next((one for one in of if one.words == words[: len(one.words)]), None)
    return {option.flag for option in one.options if option.type in (int, float)} if one else set()
