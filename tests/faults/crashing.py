"""Run something in a child process in which the n-th file operation kills it, interrupts it, or fails.

Operations are what changes a disk: opening for writing, writing, fsync, rename, removing. A child is forked,
so that a command needs no second for its imports; it has the parent's one thread.
"""

from __future__ import annotations

import builtins
import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KILL_BEFORE, KILL_AFTER, HALF = "killed before", "killed after", "killed in the middle of"
INTERRUPT = "interrupted after"  # by Ctrl-C
_WRITE = os.write  # the real one, to tell how it went
FAULTS = {"full": errno.ENOSPC, "failing": errno.EIO, "read-only": errno.EROFS}


class _Written:
    """A file that counts what is written to it."""

    def __init__(self, file: Any, count: Callable[..., Any]):
        self._file, self._count = file, count

    def write(self, data: Any) -> int:
        return self._count("write", self._file.write, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()


@dataclass
class Fault:
    """Operation number `at` (from 1; 0: none) kills or interrupts the process or gives an error.

    An error is given once or, `lasting`, by every operation from then on.
    """

    at: int
    how: str = KILL_BEFORE
    lasting: bool = False
    done: int = 0

    def _hit(self) -> bool:
        self.done += 1
        return self.at > 0 and (self.done >= self.at if self.lasting else self.done == self.at)

    def count(self, name: str, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._hit():
            return operation(*args, **kwargs)
        if self.how in FAULTS:
            if name != "unlink":  # a full disk can be tidied
                raise OSError(FAULTS[self.how], os.strerror(FAULTS[self.how]))
            return operation(*args, **kwargs)
        if self.how == HALF and name == "write":
            *descriptor, data = args
            operation(*descriptor, memoryview(data).cast("B")[: memoryview(data).nbytes // 2])
        elif self.how == INTERRUPT:
            done = operation(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGINT)
            return done
        elif self.how != KILL_BEFORE:
            operation(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        for name in ("replace", "rename", "unlink", "fsync", "write", "truncate", "ftruncate"):
            self._wrap(os, name)
        opened, low = builtins.open, os.open

        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wxa+") or str(file).startswith("/dev"):
                return opened(file, mode, *args, **kwargs)
            made = self.count("open", opened, file, mode, *args, **kwargs)
            return _Written(made, self.count) if "b" in mode else made

        def low_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            if not flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) or str(path).startswith("/dev"):
                return low(path, flags, *args, **kwargs)
            return self.count("open", low, path, flags, *args, **kwargs)

        builtins.open, os.open = open_, low_open

    def _wrap(self, module: Any, name: str) -> None:
        operation = getattr(module, name)
        setattr(module, name, lambda *args, **kwargs: self.count(name, operation, *args, **kwargs))


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, or minus the signal; how many operations it did; what it said."""

    code: int
    operations: int
    said: str


def run(body: Callable[[], int], fault: Fault, log: str) -> Ended:
    """`body` in a child with the fault; what it prints goes to the file `log`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.close(reading)
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
            fault.install()
            try:
                code = body()
            finally:
                _WRITE(writing, str(fault.done).encode())
        finally:
            os._exit(code)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    counted = os.read(reading, 100)
    os.close(reading)
    with open(log, encoding="utf-8", errors="replace") as file:
        said = file.read()
    return Ended(os.waitstatus_to_exitcode(status), int(counted or 0), said)


def command(*arguments: object) -> Callable[[], int]:
    """A command line as a body."""

    def body() -> int:
        from tests.cli.conftest import rebasin

        outcome = rebasin(*arguments)
        _WRITE(1, outcome.out.encode())
        _WRITE(2, outcome.err.encode())
        return outcome.code

    return body
