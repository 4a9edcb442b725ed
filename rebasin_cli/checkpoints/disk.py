"""A folder as staging needs it: locks, removals and renames that last, and what the disk says as an error."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ResourceError
from ..runtime.signals import held_back

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing that was left is touched
    fcntl = None

LOCK = "lock"  # how the name of a lock ends


def can_lock() -> bool:
    """Whether this system locks files."""
    return fcntl is not None


def lock(descriptor: int, *, waiting: bool) -> None:
    """Lock an open file, where the system can; if not `waiting`, BlockingIOError says that another has."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waiting else fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_of_our_own(folder: Path) -> tuple[str, int | None]:
    """A new token and its lock's descriptor; another where a run that tidies up was quicker to lock it."""
    while True:
        token = secrets.token_hex(8)
        path = folder / f".rebasin-{token}.{LOCK}"
        with disk(folder):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if not can_lock():  # an open file cannot be renamed there
            os.close(descriptor)
            return token, None
        try:
            lock(descriptor, waiting=False)
            if os.fstat(descriptor).st_nlink:
                return token, descriptor
        except BlockingIOError:
            pass
        except OSError:  # a disk without locks: runs there leave one another's files alone
            return token, descriptor
        os.close(descriptor)


def probe(folder: Path) -> None:
    """Raise ResourceError where no file can be made in a folder. Who tidies up knows a lock as in use."""
    with held_back():
        token, descriptor = lock_of_our_own(folder)
        remove([folder / f".rebasin-{token}.{LOCK}"])
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One process at a time renames in a folder, where the system can lock one; others wait."""
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        lock(descriptor, waiting=True)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def disk(path: Path) -> Iterator[None]:
    """What the disk says within the block, as a ResourceError about `path`."""
    try:
        yield
    except OSError as cause:
        raise resource_error(path, cause) from cause


def resource_error(path: Path, cause: OSError) -> ResourceError:
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Free some space or write to another disk; nothing was written."
    else:
        hint = "Choose a folder that can be written; nothing was written."
    return ResourceError(f"{path} cannot be written: {cause.strerror or cause}", hint=hint)


def remove(files: Iterable[Any]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file)


def sync(folder: Path) -> None:
    """Make renames last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
