"""What code of the user's may change of the process, and what is ours again when it is done.

It has a working directory of its own: one that it moves into (as hydra does) is its own from then on, and
ours stays, in which all names of files on the command line lie. `sys.stdout` and `sys.stderr` are what they
were, also where it has closed or replaced them. A process that it has forked, and that comes back from it,
ends there: a second one would write the same files.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import OutsideError

again: list[Callable[[], object]] = []  # what else is called when it is done


class _Places:
    """`home` is ours, while a command runs; `theirs` is where the user's code was last, if elsewhere."""

    home: str | None = None
    theirs: str | None = None
    depth = 0  # of calls of the user's code that lie in one another


@contextmanager
def at_home() -> Iterator[None]:
    """Around a whole command: the folder that it was started in is the one that its files are named from."""
    before, streams = (_Places.home, _Places.theirs), (sys.stdout, sys.stderr)
    _Places.home, _Places.theirs = _here(), None
    try:
        yield
    finally:
        with_us()
        _Places.home, _Places.theirs = before
        _streams_again(streams)


def with_us() -> None:
    """Go home, if code of the user's that nobody was around (a hook) has left; before files are opened."""
    if _Places.home is not None and not _Places.depth and _main():
        _move(_Places.home)


@contextmanager
def with_them() -> Iterator[None]:
    """Around each call of the user's code, where a command runs; a program of the user's own is not ours."""
    if _Places.home is None or _Places.depth or not _main():  # a thread shares all of this with the others
        yield
        return
    home, streams, process = _Places.home, (sys.stdout, sys.stderr), os.getpid()
    _Places.depth = 1
    try:
        if _Places.theirs is not None:
            _move(_Places.theirs, must=False)
        yield
    finally:
        if os.getpid() != process:
            os._exit(OutsideError.exit_code)
        _Places.depth, _Places.theirs = 0, None
        _streams_again(streams)
        _move(home)


def _streams_again(streams: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = streams
    for call in again:
        call()


def from_home(path: Path) -> Path:
    """A path that code of the user's is to open: whole, where that lives in a folder of its own."""
    return path if _Places.theirs is None else path.absolute()


def _move(to: str, *, must: bool = True) -> None:
    here = _here()
    if here == to:
        return
    if _Places.depth == 0:
        _Places.theirs = here
    try:
        os.chdir(to)
    except OSError as cause:
        if must:
            raise OutsideError(f"{to}, in which this was started, is gone: {cause.strerror}") from None


def _here() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _main() -> bool:
    return threading.current_thread() is threading.main_thread()
