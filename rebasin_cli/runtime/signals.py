"""Ctrl-C, and SIGTERM, at a moment that suits."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(KeyboardInterrupt):
    """SIGTERM, answered as Ctrl-C is."""


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM within the block, as containers and batch systems send it, raises Stopped.

    Not where it is ignored, nor in other threads than the main one: signals never reach them. Whoever answers
    it otherwise within the block may do so after it.
    """

    def stop(*_: Any) -> None:
        raise Stopped

    ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    with contextlib.nullcontext() if ignored else _answered(signal.SIGTERM, stop):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C and SIGTERM within the block are answered at its end, so that nothing is left half-changed."""
    caught: list[tuple[int, Any]] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
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
