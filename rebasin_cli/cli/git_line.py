"""The command line of `rebasin merge-driver`, which git makes up."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperCommand

from ..errors import UsageError

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
