"""Ctrl-C, SIGTERM and SIGHUP, at a moment that suits."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import HungUp, Interrupted, Lost, Terminated, TimedOut
from . import launchers

LAST = 1.0  # seconds, once all is written
GRACE = 15.0  # seconds between SIGTERM and a hard end; torchrun sends SIGKILL after 30
STOPPED = "told to stop (SIGTERM), as torchrun does to all ranks once one has ended"
HINT = "Nothing was written. See what the other ranks say (one killed for its memory says nothing); run again"
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP, its `number`, answered as Ctrl-C is."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


limits: list[TimedOut] = []  # reached: SIGTERM is then our own (`stop_watch`), and ends with the last of them


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


@dataclass
class Ending:
    """Whether this process has begun to end: then another signal changes nothing."""

    begun: bool = False
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def listening(ending: Ending) -> Iterator[None]:
    """SIGTERM raises Lost, once. Where that is not heard, because the process waits in C, it ends hard.

    After a failure SIGTERM is ignored for good: the process has to say why, and to leave with its own code.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        if not ending.begun:
            ending.begun = True
            raise Lost(STOPPED, hint=HINT)

    with heard(lambda reading: _end_hard(reading, ending)):
        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        except BaseException:
            before = signal.SIG_IGN  # a handler in Python would go, before the process does
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def heard(listen: Callable[[socket.socket], object]) -> Iterator[None]:
    """Within, `listen` runs in a thread: it reads a byte, its number, of every signal as it comes.

    It hears of it also while the main thread, which alone answers signals, is busy in C. b"" is the end.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=listen, args=(reading,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writing.close()  # ends the thread


def _end_hard(reading: socket.socket, ending: Ending) -> None:
    """Wait for SIGTERM, give the main thread time to end by itself, then end all the same."""
    while heard := reading.recv(1):
        if heard[0] == signal.SIGTERM and not ending.over.wait(GRACE):
            print(f"rebasin: {launchers.who()}{STOPPED}", file=sys.stderr, flush=True)
            os._exit(Lost.exit_code)
    reading.close()


def in_any_case(code: int) -> None:
    """The process ends with this code in a while, if it does not by itself: threads and children may hang."""
    end_children()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)  # what it asks for is happening

    def late() -> None:
        time.sleep(LAST)
        os._exit(code)

    threading.Thread(target=late, daemon=True).start()


def at_once(told: str, code: int) -> None:
    """The process ends now."""
    with suppress(Exception):  # closed meanwhile, or none
        print(f"rebasin: {told}", file=sys.stderr, flush=True)
    end_children()
    os._exit(code)


def end_children() -> None:
    """Those of multiprocessing, such as the workers of a loader."""
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        for child in multiprocessing.active_children():
            child.kill()
