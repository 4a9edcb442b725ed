"""`rebasin merge-driver`: a three-way merge of a checkpoint, for git."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from . import _groups as g
from . import _options as o
from . import app
from ._show import result, screen

FILES = 3  # BASE, OURS, THEIRS: git makes them up. MARKER is a number, PATH is called as somebody liked
_NUMBER = re.compile("[0-9]+")
_CHOSEN = re.compile("--both=(average|sum|ours|theirs|conflict)|--repair=(auto|none)")


class _AsGitCalls(TyperCommand):
    """The command line as git makes it up: a file whose name begins with a dash is no option.

    A line without `--` before its arguments has %P where it stands, after the three files and the size of
    markers: what stands there is a name. An option is one that is spelt as it is and has its value behind
    it, so no name can bring an option along with its value (`-oFILE`, `--out=FILE`).
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes = {flag: not param.is_flag for param in self.params for flag in param.opts if flag[:1] == "-"}
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
    from ..errors import UsageError

    if text.startswith("-"):
        raise UsageError(f"{flag} {text}: expected a value", hint="Write -- before the files (docs/git.md)")
    return text


@app.command(cls=_AsGitCalls, hidden=True)
@g.shared(g.SCREEN)
def merge_driver(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="%O: the common ancestor; empty for none.")],
    ours: Annotated[Path, typer.Argument(metavar="OURS", help="%A: ours, which becomes the result.")],
    theirs: Annotated[Path, typer.Argument(metavar="THEIRS", help="%B: theirs.")],
    marker: Annotated[
        str | None, typer.Argument(metavar="MARKER", help="%L: the size of conflict markers; not used.")
    ] = None,
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="%P: the file's name in git.")] = None,
    both: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="What both changed: average, sum (both changes in full), ours, theirs or conflict; average "
            "if left out, conflict without an ancestor.",
        ),
    ] = None,
    repair: Annotated[
        str,
        typer.Option(metavar="auto|none", help="none mixes running statistics; else that is a conflict."),
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write here, where nothing is, instead of to OURS; without PATH.",
        ),
    ] = None,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Three-way merge of a checkpoint in git: what one side changed is taken, what both changed is mixed.

    Exits with 1 where there is a conflict, and leaves OURS as it is. docs/git.md tells how to set it up.

    Example: rebasin merge-driver base.safetensors ours.safetensors theirs.safetensors -o merged.safetensors
    """
    from ..commands.merge_driver import merge_driver as run
    from ..errors import UsageError

    if repair not in ("auto", "none"):
        raise UsageError(f"--repair {repair}: a merge in git has no data", hint="Choose auto or none")
    if path is None and marker is not None and not _NUMBER.fullmatch(marker):
        path = marker  # a line without %L
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(base, ours, theirs, listener, path=path, both=both, repair=repair, output=out)
    result(done, json)
