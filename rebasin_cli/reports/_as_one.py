"""Commands that are steps of a run leave it to the run to tell of them: in the log, in the step summary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_told_as_one: ContextVar[bool] = ContextVar("_told_as_one", default=False)


@contextmanager
def as_one() -> Iterator[None]:
    """Whoever runs commands within tells of all of them."""
    token = _told_as_one.set(True)
    try:
        yield
    finally:
        _told_as_one.reset(token)


def told_as_one() -> bool:
    """Whether this command is a step of a run."""
    return _told_as_one.get()
