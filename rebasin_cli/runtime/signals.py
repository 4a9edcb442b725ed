"""Ctrl-C, SIGTERM and SIGHUP, at a moment that suits."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import HungUp, Interrupted, Terminated, TimedOut

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP, its `number`, answered as Ctrl-C is."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


limits: list[TimedOut] = []  # reached: SIGTERM is then our own (`watching`), and ends with the last of them


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM within the block, as containers and batch systems send it, raises Stopped; so does SIGHUP.

    Not where one is ignored (nohup), nor in other threads than the main one: signals never reach them.
    Whoever answers it otherwise within the block may do so after it.
    """

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    with contextlib.ExitStack() as stack:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                stack.enter_context(_answered(number, stop))
        yield


def ending(interrupt: KeyboardInterrupt) -> Interrupted:
    """The error that the program ends with."""
    if not isinstance(interrupt, Stopped):
        return Interrupted("interrupted")
    if interrupt.number == signal.SIGTERM and limits:
        return limits[-1]
    if interrupt.number == signal.SIGTERM:
        return Terminated("terminated")
    return HungUp("the terminal is gone")


@contextmanager
def unanswered() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP within the block are not answered: what they ask for is happening."""
    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, *ENDING):
            if callable(signal.getsignal(number)):
                stack.enter_context(_answered(number, lambda number, frame: None))
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP within the block are answered at its end: nothing is left half-changed."""
    with holding() as held, held:
        yield


@contextmanager
def holding() -> Iterator[Held]:
    """What holds them back in each `with held:` within: for many small blocks, it costs next to nothing."""
    held = Held({number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)})
    answer = held.answer  # one object: who put it there is asked at the end
    with contextlib.ExitStack() as stack:
        for number, handler in held.handlers.items():
            if callable(handler):  # else it ends the process at once, or is ignored
                stack.enter_context(_answered(number, answer))
        yield held


class Held:
    """Signals that come within `with held:` are answered by the `handlers` at its end, others at once."""

    def __init__(self, handlers: Mapping[int, Any]):
        self.handlers, self.depth = handlers, 0
        self.caught: list[tuple[int, Any]] = []

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        while self.caught and not self.depth:
            number, frame = self.caught.pop(0)
            self.handlers[number](number, frame)

    def answer(self, number: int, frame: Any) -> None:
        if self.depth:
            self.caught.append((number, frame))
        else:
            self.handlers[number](number, frame)


@contextmanager
def _answered(number: int, handler: Callable[..., Any]) -> Iterator[None]:
    """In the main thread, which signals go to, by this handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        if signal.getsignal(number) is handler:
            signal.signal(number, before)
