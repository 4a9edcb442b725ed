"""How one of several processes ends when it is told to: by itself, or hard where it does not hear.

torchrun sends SIGTERM to the rest once one has ended: that ends a step of the first rank, which waits for
nobody.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import Lost

LAST = 1.0  # seconds, once all is written
GRACE = 15.0  # seconds between SIGTERM and a hard end; torchrun sends SIGKILL after 30
STOPPED = "told to stop (SIGTERM), as torchrun does to all ranks once one has ended"
HINT = "Nothing was written. See what the other ranks say (one killed for its memory says nothing); run again"


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
            who = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
            print(f"rebasin: {who}: {STOPPED}", file=sys.stderr, flush=True)
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
