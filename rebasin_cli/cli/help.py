"""The help of an operation: what most people use, the rest with --help-all, and where other options are.

Three kinds of options are told in three places: a command's own here, those that mean the same everywhere by
`rebasin list options`, those of a method by `rebasin list methods NAME`. All of them are typed alike.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from ..errors import UsageError
from ..registry.operations import METHODS, UNNAMED, Operation
from .run import LeavesDocuments

FILES = 3  # BASE, OURS, THEIRS: git makes them up. MARKER is a number, PATH is called as somebody liked
_NUMBER = re.compile("[0-9]+")
_CHOSEN = re.compile("--both=(average|sum|ours|theirs|conflict)|--repair=(auto|none)")


class AsGitCalls(TyperCommand):
    """The command line as git makes it up: a file whose name begins with a dash is no option.

    A line without `--` before its arguments has %P where it stands, after the three files and the size of
    markers: what stands there is a name. An option is one that is spelt as it is and has its value behind
    it, so no name can bring an option along with its value (`-oFILE`, `--out=FILE`).
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes = {
            flag: not getattr(param, "is_flag", False)
            for param in self.params
            for flag in param.opts
            if flag[:1] == "-"
        }
        takes |= dict.fromkeys(ctx.help_option_names, False)
        options: list[str] = []
        arguments: list[str] = []
        left = list(args)
        while left:
            word = left.pop(0)
            if word == "--":
                arguments, left = [*arguments, *left], []
            elif not _is_option(word, takes, arguments, after=bool(left)):
                arguments.append(word)
            else:
                options.append(word)
                if takes.get(word) and left:
                    options.append(_value(word, left.pop(0)))
        return super().parse_args(ctx, [*options, "--", *arguments])


def _is_option(word: str, known: Collection[str], arguments: Sequence[str], *, after: bool) -> bool:
    """Whether a word behind these arguments is an option; `after` says whether more words follow."""
    marked = len(arguments) > FILES and _NUMBER.fullmatch(arguments[FILES])
    if len(arguments) < FILES or len(arguments) > FILES + bool(marked):  # PATH is not to come, or is there
        return word.startswith("-")
    if marked:
        return word in known and after
    return word in known or bool(_CHOSEN.fullmatch(word))


def _value(flag: str, text: str) -> str:
    """Raises UsageError for what is rather an option: then a file is called like one."""
    if text.startswith("-"):
        raise UsageError(f"{flag} {text}: expected a value", hint="Write -- before the files (docs/git.md)")
    return text


READ_ANOTHER_WAY: dict[str, type[TyperCommand]] = {"merge-driver": AsGitCalls, "run": LeavesDocuments}
ALL = "rebasin.all"  # whether the help of a context is of all options
OF_METHODS = "options"  # the field that holds them


def of(operation: Operation) -> type[TyperCommand]:
    """The class of the command that this operation becomes."""
    read = READ_ANOTHER_WAY.get(operation.name)
    kinds = (OperationCommand,) if read is None else (read, OperationCommand)
    return type("OperationCommand", kinds, {"operation": operation})


def show_all(context: typer.Context, value: bool) -> None:
    """What --help-all does."""
    if value:
        context.meta[ALL] = True
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit


class OperationCommand(TyperCommand):
    """A command with more options than one wants to read."""

    operation: ClassVar[Operation]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        every = ctx.meta.get(ALL, False) or not self.operation.common
        shown = copy.copy(self)
        shown.epilog = "\n\n".join(where_the_rest_is(self.operation, every=every))
        shown.params = self._all() if every else self._common()
        super(OperationCommand, shown).format_help(ctx, formatter)

    def _all(self) -> list[Any]:
        """The parameters of the command's own."""
        others = [one for one in self.operation.options if one.everywhere or one.within == OF_METHODS]
        elsewhere = {one.parameter for one in others}
        return [param for param in self.params if param.name not in elsewhere]

    def _common(self) -> list[Any]:
        """Those that most people use, in the order of COMMON, in one panel."""
        place = {name: number for number, name in enumerate(self.operation.common)}
        arguments = [one.name for one in self.operation.options if one.positional]
        others: list[Any] = [copy.copy(p) for p in self.params if p.name not in arguments]
        for param in others:
            param.rich_help_panel = None
        few = sorted((p for p in others if p.name in place), key=lambda p: place[p.name])
        return (
            [p for p in self.params if p.name in arguments]
            + few
            + [p for p in others if p.name == "help_all"]
        )

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Of the options of methods those of the one that is named, or of those that may be meant."""
        named = ctx.params.get("method")
        methods = [named] if named in METHODS.names() else UNNAMED
        meant = {option.flag for method in methods for option in METHODS.options(method)}
        others = {one.flag for one in self.operation.options if one.within == OF_METHODS} - meant
        return [item for item in super().shell_complete(ctx, incomplete) if item.value not in others]


def where_the_rest_is(operation: Operation, *, every: bool) -> list[str]:
    """Sentences that say where the options are that are not shown."""
    name = f"rebasin {operation.name}"
    told = [] if every else [f"All options of {operation.name}: {name} --help-all"]
    if any(one.within == OF_METHODS for one in operation.options):
        told.append("Options of a method, such as --effort high: rebasin list methods NAME")
    if everywhere := [one.flag for one in operation.options if one.everywhere]:
        flags = (
            ", ".join(everywhere) + " (" if every else "Options that mean the same everywhere, such as -q ("
        )
        told.append(f"{'And ' if every else ''}{flags}rebasin list options)")
    return told
