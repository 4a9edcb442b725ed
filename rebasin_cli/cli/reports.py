"""Barrier reports on the screen, whole and in brief, and what is said of their gates beside them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..runtime.text import line
from .screen import put


def whole(report: Any) -> None:
    """A report as a table."""
    from ..reports.barrier import document
    from ..reports.formats import terminal

    terminal.show(document(report))


def brief(report: Any) -> None:
    """A report as a few lines: figures and gates."""
    from ..reports.conclusion import brief as lines

    for text in lines(report):
        put(f"   {text}")


def beside_json(report: Any) -> None:
    """In brief on stderr, for the log; not within a run, which tells of it."""
    from ..reports.github import told_as_one

    if not told_as_one():
        with redirect_stdout(sys.stderr):
            brief(report)


def warn(found: Sequence[Any], recipe: Path | None = None) -> None:
    """Say of gates without a baseline on stderr that nothing was compared, and to GitHub as it reads it."""
    from ..reports import github

    for gate in found:
        if gate.skipped:
            print(line(f"WARNING: no baseline: {gate.told}"), file=sys.stderr)
    if github.running():
        for text in github.warnings(found, None if recipe is None else str(recipe)):
            print(text, file=sys.stderr, flush=True)


def refuse_gone(arguments: Sequence[str]) -> None:
    """Raise UsageError with the line to type for options that are gone, and are told elsewhere."""
    from ..commands.recipes.vocabulary import moved_line

    if other := moved_line(arguments):
        raise UsageError(other)
    if arguments[:1] not in (["barrier"], ["gate"]):
        return
    from ..measure import thresholds

    told: list[str] = []
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        given = value if equals else after * (not after.startswith("--"))
        told += filter(None, [thresholds.gone(flag, given)])
    if told:
        raise UsageError("; ".join(told))
