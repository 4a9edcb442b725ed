"""How one of several processes ends when it is told to: by itself, or hard where it does not hear.

torchrun sends SIGTERM to the rest once one has ended: that ends a step of the first rank, which waits for
nobody.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import Lost

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

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_end_hard, args=(reading, ending), daemon=True).start()
    before = signal.signal(signal.SIGTERM, stop)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    except BaseException:
        before = signal.SIG_IGN  # a handler in Python would go, before the process does
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(wakeup)
        os.close(writing)  # ends the thread


def _end_hard(reading: int, ending: Ending) -> None:
    """Wait for SIGTERM, give the main thread time to end by itself, then end all the same."""
    while heard := os.read(reading, 1):
        if heard[0] == signal.SIGTERM and not ending.over.wait(GRACE):
            who = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
            print(f"rebasin: {who}: {STOPPED}", file=sys.stderr, flush=True)
            os._exit(Lost.exit_code)
    os.close(reading)
