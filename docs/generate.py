"""Write what the documents take from elsewhere, so that it is current.

    python docs/generate.py            # write it
    python docs/generate.py --check    # exit 1 with a diff where something is not current

docs/cli.md is the whole help of every command (`--help-all`), 100 columns wide, whatever the terminal and its
environment, and what `rebasin list` says of options that are told once; recipe.schema.json is the schema of
recipes; the table in errors.md is of rebasin_cli/errors.py. Other pages show files of docs/examples/: a line
that is only a link to one is followed by a block with its text.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from typer import rich_utils

from rebasin_cli import errors
from rebasin_cli.cli import help as helping
from rebasin_cli.cli import whole
from rebasin_cli.commands.list import List, option_lines
from rebasin_cli.commands.list import run as listed
from rebasin_cli.commands.recipes.vocabulary import vocabulary
from rebasin_cli.commands.run import schema_text
from rebasin_cli.runtime import broken

DOCS = Path(__file__).parent
EXAMPLE = re.compile(r"(?m)(^\[`(examples/[\w.]+)`\]\(\2\)\n\n```\w+\n)(?s:.*?)(^```$)")
ERRORS = re.compile(r"(?s)(?<=<!-- errors -->\n).*?(?=<!-- end -->)")
WIDTH = 100
BROKEN = (  # what is no error of ours, and what is none at all: meaning, message, what to do
    "a package or a module cannot be imported, this Python is too old, or a bug, which shows its traceback",
    "`this installation is broken: … cannot be imported`",
    "install again, into an environment of its own: the line below has the command; report a bug",
)
LEFT = ("all was done, but the reader of stdout left before it had all, such as `head`", "", "nothing")
HEAD = """\
# Commands

Generated from the program by `make docs`; edit the commands in `rebasin_cli/commands/`, not this page.
Exit codes and messages: [errors.md](errors.md). `--help` shows what most people use of the larger commands,
`--help-all` what stands here. Two kinds of options are told once, at the end:
[those that mean the same everywhere](#options-of-every-command), and [those of methods](#options-of-methods).
"""
EVERYWHERE = """\
## Options of every command

What these mean does not hang on the command that takes them. Also: `rebasin list options`.
"""
OF_METHODS = """\
## Options of methods

Of any command that takes the method, as flags. Also: `rebasin list methods NAME`.
"""


def commands() -> str:
    """The text of cli.md."""
    with mock.patch.multiple(rich_utils, MAX_WIDTH=WIDTH, COLOR_SYSTEM=None, FORCE_TERMINAL=False):
        found = list(helps(typer.main.get_command(whole())))
    sections = [f"## {path}\n\n```text\n{text}\n```\n" for path, text in found]
    return "\n".join([HEAD, *sections, EVERYWHERE, told_once(), OF_METHODS, options_of_methods()])


def told_once() -> str:
    """The options that mean the same everywhere, as a block."""
    things = listed(List(kind="options")).kinds["options"]
    wide = max(len(thing["name"]) for thing in things)
    return block(f"{thing['name']:<{wide}}  {thing['summary']}" for thing in things)


def options_of_methods() -> str:
    """Every method of ours with its options, a block each."""
    things = listed(List(kind="methods")).kinds["methods"]
    return "\n".join(
        f"### {thing['name']}\n\n{block(option_lines(thing['options']))}"
        for thing in things
        if thing["options"]
    )


def block(lines: Iterable[str]) -> str:
    """Lines as a block of code, none of them wider than the page."""
    told = [
        textwrap.fill(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        if len(line) > WIDTH
        else line
        for line in lines
    ]
    return "\n".join(["```text", *told, "```", ""])


def helps(command: Any, path: str = "rebasin", parent: Any = None) -> Iterator[tuple[str, str]]:
    """(`rebasin align`, its help) for a command and all below it, in the order of its help."""
    name = path.rpartition(" ")[2]
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH)
    context.meta[helping.ALL] = True
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        text = command.get_help(context)  # typer prints it; plain click returns it
    lines = (shown.getvalue() or text).splitlines()
    yield path, "\n".join(line.rstrip() for line in lines).strip("\n")
    for word, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {word}", context)


def with_examples(text: str) -> str:
    """A page with its examples as they are in their files."""

    def current(found: re.Match) -> str:
        return found[1] + (DOCS / found[2]).read_text(encoding="utf-8") + found[3]

    return EXAMPLE.sub(current, text)


def kinds() -> list[type[errors.RebasinError]]:
    """Every error with a class of its own, the root left out."""
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [
        kind for kind in found if issubclass(kind, errors.RebasinError) and kind is not errors.RebasinError
    ]


def account(kind: type[errors.RebasinError]) -> tuple[str, str, str]:
    """What an error means, a message of it, and what to do, as its docstring says them."""
    means, said, *_ = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    message, _, after = " ".join(said.split()).removeprefix("Example: ").partition(" Next: ")
    return " ".join(means.split()), message, after


def errors_table() -> str:
    """A row an error, by exit code, with the codes that are no error's."""
    rows = [
        (0, "", "done", "", ""),
        (1, "", '`rebasin verify` does not answer "yes"', "", "look at the reason that it prints"),
        (broken.EXIT_CODE, "", *BROKEN),
        (141, "", *LEFT),
    ]
    for kind in kinds():
        means, message, after = account(kind)
        code = "its own" if kind is errors.Elsewhere else kind.exit_code
        rows.append((code, f"`{kind.__name__}`", means, f"`{message}`", after))
    rows.sort(key=lambda row: (isinstance(row[0], str), row[0] if isinstance(row[0], int) else 0))
    head = ["| code | error | means | a message | do |", "|---|---|---|---|---|"]
    lines = [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", "\n".join([*head, *lines])) + "\n"


def pages() -> dict[Path, str]:
    """Every page and what it should say."""
    written = {path: with_examples(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("*.md"))}
    page, table = DOCS / "errors.md", errors_table()
    written[page], placed = ERRORS.subn(lambda _: f"\n{table}\n", written[page])
    assert placed == 1, f"{page} has no place for the table of errors"
    return written | {DOCS / "cli.md": commands(), DOCS / "recipe.schema.json": schema_text(vocabulary())}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python docs/generate.py [--check]", file=sys.stderr)
        return 2
    stale = False
    for path, new in pages().items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if new == old:
            continue
        if not arguments:
            path.write_text(new, encoding="utf-8")
            continue
        stale, name = True, f"docs/{path.name}"
        diff = difflib.unified_diff(old.splitlines(), new.splitlines(), name, "as it should be", lineterm="")
        print("\n".join(diff))
    if stale:
        print("The documents are not current; write them with: make docs", file=sys.stderr)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
