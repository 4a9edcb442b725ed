"""stdout and stderr for as long as a command runs: readers that leave, streams that are closed, hostile text.

A reader of stdout that leaves stops nothing: the command goes on, and ends with its own exit code, or with
141 where that would have been 0, as a command does that SIGPIPE ends. Nobody has to read stderr.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import ResourceError
from ..registry import surroundings

BROKEN_PIPE = 141
HIGH = 200  # descriptors from here on are seldom in use
# Nothing but colours, and on a terminal what moves the cursor of a progress bar.
_COLOURS, _CURSOR = r"\x1b\[[0-9;]*m", r"\x1b\[[0-9;?]*[A-Khl]|\r"
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"


class Guarded:
    """A text stream that passes no control characters on but its own, and outlives its reader."""

    def __init__(self, stream: Any, *, needed: bool, cursor: bool = False):
        self._stream, self._needed = stream, needed
        self.broken = False
        kept = f"{_COLOURS}|{_CURSOR}" if cursor else _COLOURS
        self._control = re.compile(f"({kept})|{_CONTROL}")

    def write(self, text: str) -> int:
        with self._reader():
            self._stream.write(self._control.sub(lambda found: found[1] or "\ufffd", text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for text in lines:
            self.write(text)

    def flush(self) -> None:
        with self._reader():
            self._stream.flush()

    def close(self) -> None:
        """Nobody closes it but we: code of the user's may try."""
        self.flush()

    @property
    def buffer(self) -> Any:
        """For bytes; to close it closes nothing."""
        self.flush()
        try:
            return open(self._stream.fileno(), "wb", buffering=0, closefd=False)
        except (OSError, ValueError):
            raise AttributeError("buffer") from None

    def detach(self) -> Any:
        raise io.UnsupportedOperation("this stream is rebasin's")

    @property
    def lost(self) -> bool:
        """Whether somebody closed it for good: what was shown since is nowhere."""
        return bool(getattr(self._stream, "lost", False))

    def last_flush(self) -> None:
        """As `flush`; what cannot be written is not tried again when the process ends."""
        try:
            self.flush()
        except OSError:
            self.discard()
            raise

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # where ours could not be made: its own, which would be closed
            raise AttributeError(name)
        return getattr(self._stream, name)

    @contextmanager
    def _reader(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._needed and error.errno == errno.EBADF:
                raise _closed() from None
            if self._needed and not isinstance(error, BrokenPipeError):
                raise
            self.broken = True
            self.discard()

    def discard(self) -> None:
        """Whatever is written from here on goes nowhere: what the stream still holds, too."""
        with suppress(OSError, io.UnsupportedOperation):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def guarded() -> Iterator[None]:
    """Both streams guarded within the block, and what it leaves with: 141 where 0 would have been untrue.

    Raises ResourceError where stdout is closed and something was to be shown, OSError where its disk is full.
    """
    _occupy()
    was = sys.stdout, sys.stderr
    with _kept(was[0]) as shown, _kept(was[1]) as told:
        out = Guarded(_encoding_anything(shown), needed=True)
        told = _encoding_anything(told)
        sys.stdout, sys.stderr = out, Guarded(told, needed=False, cursor=_is_terminal(told))
        yield from _guarded(out, was)


def _guarded(out: Guarded, was: tuple[Any, Any]) -> Iterator[None]:
    left: SystemExit | None = None
    try:
        try:
            yield
        except SystemExit as stop:
            left = stop
        out.last_flush()
        sys.stderr.flush()
        done = left is None or not left.code
        if done and (out.lost or (was[0] is None and out.tell())):
            raise _closed()
    finally:
        sys.stdout, sys.stderr = was
    if done and out.broken:
        sys.exit(BROKEN_PIPE)
    if left is not None:
        raise left


@contextmanager
def _kept(stream: Any) -> Iterator[Any]:
    """The same stream by a descriptor of our own, so that none closes it; what is no file is kept as it is.

    When code of the user's is done, its own descriptor is what it was: closed, another file of ours would
    get the number, and a library's words with it.
    """
    try:
        number = stream.fileno()
        stream.flush()
        own = _copied(number)
        was = os.fstat(own)
    except (AttributeError, OSError, ValueError):  # closed from the start, or not one of the system's
        yield stream
        return

    def again() -> None:
        ours, theirs = _is(own, was), _is(number, was)
        with suppress(OSError):
            if ours and not theirs:
                os.dup2(own, number)
            elif theirs and not ours:  # it has closed all that it did not know, as daemons do
                os.dup2(number, own)
            elif not theirs:  # all of them, and nobody can be told
                text.lost = True
                nowhere = os.open(os.devnull, os.O_WRONLY)
                for gone in (number, own):  # no file of ours gets the number
                    os.dup2(nowhere, gone)
                if nowhere not in (number, own):
                    os.close(nowhere)

    by_line = _is_terminal(stream) or number == 2
    text: Any = open(own, "w", buffering=1 if by_line else -1, encoding=stream.encoding, errors=stream.errors)
    surroundings.again.append(again)
    try:
        yield text
    finally:
        surroundings.again.remove(again)
        with suppress(OSError, ValueError):
            text.close()


def _closed() -> ResourceError:
    return ResourceError(
        "stdout is closed: the result could not be shown", hint="Send it to /dev/null where it is not needed"
    )


def _copied(number: int) -> int:
    """Another descriptor of the same, where possible one that no file that is opened later gets."""
    with suppress(ImportError, OSError):
        import fcntl

        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, HIGH)
    return os.dup(number)


def _is(number: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(number), file)
    except OSError:
        return False


def _occupy() -> None:
    """A closed descriptor of 0, 1 and 2 is opened on nothing: a file of ours must not get its number.

    Else what a library says on stderr would be written into a checkpoint.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _encoding_anything(stream: Any) -> Any:
    """A file name that is no text, or an arrow on an old terminal, is shown escaped instead of failing."""
    if stream is None:  # closed by who started us
        return io.StringIO()
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return stream


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
