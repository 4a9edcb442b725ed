"""The help of an operation: what most people use, the rest with --help-all, and where other options are.

Three kinds of options are told in three places: a command's own here, those that mean the same everywhere by
`rebasin list options`, those of a method by `rebasin list methods NAME`. All of them are typed alike.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from ..registry.operations import METHODS, UNNAMED, Operation
from .git_line import AsGitCalls
from .run import LeavesDocuments

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
