"""The one way to open what somebody names as a file: a regular one, without waiting.

A pipe, a device or a file without end is refused, whatever links lead to it. What is read whole has at most
so many bytes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BufferedReader

from .surroundings import with_us

SMALL = 1 << 26  # bytes of what a person writes, or a program for one: more is something else
_NO_WAITING = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"))


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[BufferedReader]:
    """A regular file, to be read. Raises OSError for anything else, without opening it."""
    with open(_descriptor(path), "rb") as file:
        yield file


def _descriptor(path: str | os.PathLike[str]) -> int:
    with_us()
    try:
        check_regular(os.stat(path))  # before it is opened, which alone may do something to a device
        descriptor = os.open(path, _NO_WAITING)
    except ValueError:
        raise OSError(errno.EINVAL, "no file can have this name") from None
    try:
        check_regular(os.fstat(descriptor))  # it may be another one by now
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(status: os.stat_result) -> None:
    """Raise OSError for what is no regular file."""
    if not stat.S_ISREG(status.st_mode):
        what = "it is a folder" if stat.S_ISDIR(status.st_mode) else "it is no regular file"
        raise OSError(errno.EINVAL, what)
    if not status.st_size and status.st_dev in _made_up():  # reading may wait, or never end
        raise OSError(errno.EINVAL, "it is no regular file: the system makes it up as it is read")


@cache
def _made_up() -> set[int]:
    """The devices of what looks like files, and is the system's own account of itself."""
    return {os.stat(place).st_dev for place in ("/proc", "/sys") if os.path.isdir(place)}


def content(path: str | os.PathLike[str], most: int = SMALL) -> bytes:
    """All bytes of a file that has at most so many. Raises OSError."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read")
        return file.read(size)
