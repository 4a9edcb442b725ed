"""Options that another command has now, and what to type instead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

# Of a command: what went from it, by its key, and to which.
MOVED = {"merge": {"ignore": "average", "copy_from": "average", "extra": "average"}}


def key(command: str, key: str) -> str | None:
    """What a recipe says for a key that the command had; None for any other."""
    to = MOVED.get(command, {}).get(key)
    return to and f"{key!r} is of `{to}` now (models as they are): `{to}: {{models: …, {key}: …}}`"


def flag(command: str, flag: str) -> str | None:
    """The command that has a flag now; None for any other."""
    return MOVED.get(command, {}).get(flag.removeprefix("--").replace("-", "_")) if flag[:2] == "--" else None


def line(arguments: Sequence[str]) -> str | None:
    """What is wrong with a command line that has such a flag, with the line to type; None for any other."""
    if not arguments:
        return None
    command, *rest = arguments
    gone = [word.partition("=")[0] for word in rest if flag(command, word.partition("=")[0])]
    if not gone:
        return None
    to = str(flag(command, gone[0]))
    typed = shlex.join(["rebasin", to, *_without_method(rest)])
    return f"{' and '.join(dict.fromkeys(gone))}: of rebasin {to} now. Type: {typed}"


def _without_method(words: Sequence[str]) -> list[str]:
    """Without the word that said that nothing is aligned, which the other command never does."""
    left: list[str] = []
    for word in words:
        if word == "none" and left[-1:] in (["--method"], ["-m"]):
            left.pop()
        elif word not in ("--method=none", "-mnone"):
            left.append(word)
    return left
