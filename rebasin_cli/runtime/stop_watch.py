"""A run that is told to stop, by a signal or by a time limit, ends, whatever it is doing.

A signal is answered when the main thread can (`signals`). A thread hears of it at once: it sees to what has
to be written before whoever sent it loses patience, and ends the process at a second signal, or where the
main thread does not end for long, because it is busy in C or its code catches whatever is raised. A time
limit is a SIGTERM that comes from here: what suits the one suits the other.
"""

from __future__ import annotations

import _thread
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field

from ..errors import TimedOut
from ..registry import options
from . import signals
from .signals import Stopped

PATIENCE = 4.0  # seconds between a signal and what is written all the same; a CI server kills after 10
HARDEST = 30.0  # … and the end of the process, where nothing else ends it
ANSWERED = (signal.SIGINT, *signals.ENDING)


@dataclass
class Watch:
    """What a run is told while it lasts. `last_words` writes what has to be, from whatever thread, once."""

    last_words: Callable[[KeyboardInterrupt], object]
    _numbers: list[int] = field(default_factory=list)  # of the signals that came
    _since: float = 0.0
    _said: bool = False
    _limits: list[tuple[float, TimedOut]] = field(default_factory=list)  # until when, and what then
    _lock: threading.Lock = field(default_factory=threading.Lock)  # none is reached once it has ended
    _own: bool = False  # whether a SIGTERM is on its way that is a limit's
    _main: bool = field(default_factory=lambda: threading.current_thread() is threading.main_thread())
    _bell: socket.socket | None = None  # wakes the thread, which then looks at the limits

    @contextmanager
    def on(self) -> Iterator[Watch]:
        """While it watches. Only the main thread hears signals; in others limits are seen at their ends."""
        if not self._main:
            yield self
            return
        before = len(signals.limits)
        rung, self._bell = socket.socketpair()
        try:
            with self._bell, signals.heard(lambda reading: self._listen(reading, rung)):
                yield self
        finally:
            del signals.limits[before:]
            if self._numbers:
                signals.end_children()

    @contextmanager
    def limited(self, seconds: float | None, error: TimedOut) -> Iterator[None]:
        """Within, after so many `seconds` the run ends with this error; None is any time."""
        limit = (time.monotonic() + (seconds or 0.0), error)
        if seconds is not None:
            self._limits.append(limit)
            self._ring()
        try:
            yield
            self.check()
        finally:
            with self._lock, suppress(ValueError):
                self._limits.remove(limit)

    def within(self, limit: str | None) -> AbstractContextManager[None]:
        """The same for a time as people write it (`20m`); None, and what is no time, is any."""
        return self.limited(
            options.seconds(limit) if limit else None,
            TimedOut(f"the time limit of {options.with_unit(limit or '')} was reached"),
        )

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.send(b"\0")

    def check(self) -> None:
        """Raise what has come and was not heard: code of the user's may have caught it."""
        if self._numbers:
            raise _raised(self._numbers[0])
        for until, error in self._limits:
            if time.monotonic() >= until:
                raise error

    # ------------------------------------------------------------------------------------ the thread

    def _listen(self, reading: socket.socket, bell: socket.socket) -> None:
        with reading, bell:
            while True:
                ready, _, _ = select.select([reading, bell], [], [], self._until())
                if bell in ready:
                    bell.recv(64)
                if reading in ready:
                    came = reading.recv(64)
                    if not came:
                        return
                    for number in came:
                        self._hear(number)
                self._look()

    def _until(self) -> float | None:
        """Seconds until there is something to do without being woken."""
        if self._numbers:
            until = self._since + (HARDEST if self._said else PATIENCE)
        elif limits := list(self._limits):
            until = min(until for until, _ in limits)
        else:
            return None
        return max(0.0, until - time.monotonic())

    def _hear(self, number: int) -> None:
        if number not in ANSWERED:
            return
        if self._own and number == signal.SIGTERM:
            self._own = False
            return
        self._numbers.append(number)
        if len(self._numbers) == 1:
            self._since = time.monotonic()
        else:
            self._end()

    def _look(self) -> None:
        now = time.monotonic()
        if self._numbers:
            if not self._said and now >= self._since + PATIENCE:
                self._say()
            if now >= self._since + HARDEST:
                self._end()
            return
        with self._lock:
            reached = [error for until, error in self._limits if now >= until]
            if reached:
                signals.limits.append(reached[0])
                self._numbers.append(signal.SIGTERM)
                self._since, self._own = now, True
                _wake_main()

    def _say(self) -> None:
        self._said = True
        self.last_words(_raised(self._numbers[0]))

    def _end(self) -> None:
        """At once, but for what has to be written, which takes no time where the disk works."""
        words = threading.Thread(target=self._say, daemon=True)
        words.start()
        words.join(1.0)
        error = signals.ending(_raised(self._numbers[0]))
        signals.at_once(error.message, error.exit_code)


def _raised(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt() if number == signal.SIGINT else Stopped(number)


def _wake_main() -> None:
    """SIGTERM for the main thread, also where it sleeps; on Windows, once it runs Python again."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGTERM)
    else:
        _thread.interrupt_main(signal.SIGTERM)
