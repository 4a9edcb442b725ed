"""Ctrl-C, SIGTERM and SIGHUP, at a moment that suits."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP, its `number`, answered as Ctrl-C is."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


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


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP within the block are answered at its end: nothing is left half-changed."""
    caught: list[tuple[int, Any]] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    with contextlib.ExitStack() as stack:
        for number, handler in handlers.items():
            if callable(handler):  # else it ends the process at once, or is ignored
                stack.enter_context(_answered(number, lambda *args: caught.append(args)))
        yield
    for number, frame in caught:
        handlers[number](number, frame)


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
