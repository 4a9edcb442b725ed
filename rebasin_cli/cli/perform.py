"""An operation performed in this process, and what it found on the screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..registry.operations import Operation
from ..registry.results import Result, values
from ._show import result, screen

# Of results with a way of their own to be shown to a person, by their class.
OWN_WAYS: dict[str, Callable[..., None]] = {}


def perform(operation: Operation, asked: Any) -> Result:
    """What the operation finds; it tells on the terminal what it does."""
    with screen(getattr(asked, "quiet", False), getattr(asked, "verbose", False)) as listener:
        done: Result = operation.run(asked, listener)
    return done


def show(done: Result, asked: Any) -> None:
    """What it found, on stdout: as JSON, or a line a fact."""
    if getattr(asked, "json", False):
        result(values(done), True)
    else:
        show_on_screen(done)


def show_on_screen(done: Result) -> None:
    """The same for a person."""
    OWN_WAYS.get(type(done).__name__, _lines)(done)


def _lines(done: Result) -> None:
    result(values(done, screen=True), False)
