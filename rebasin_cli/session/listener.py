"""To whom a command tells what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Listener:
    """Where a command tells what it does: sentences, and steps done of a total (None: unknown).

    `command` is the command line as it was typed, which reports name; "" where none was.
    """

    say: Callable[[str], None] = lambda text: None
    step: Callable[[str, int, int | None, str], None] = lambda task, done, total, detail: None
    command: str = ""


SILENT = Listener()
