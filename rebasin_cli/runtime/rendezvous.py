"""Where several processes meet: the store of the first one, and what they say there of coming and leaving.

Before they are connected they wait in it for one another. Who fails by itself says why in it, and the others
look there.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ..errors import BROKEN, Elsewhere, Lost, RebasinError, UsageError, account
from ..registry.options import seconds
from ..registry.user_code import as_theirs
from . import launchers
from .launchers import Place
from .signals import HINT
from .text import in_a_line

# Longer than what one rank does while the others wait: a proof, one large assignment, writing. It is only
# for a process that hangs and a machine that vanishes without closing its connections; one that dies is
# noticed at once.
PATIENCE = "3h"
TIMEOUT = "REBASIN_TIMEOUT"  # the variable that says otherwise
SOON = 10.0  # seconds after which a process says that it waits for the others to start
FAREWELL = timedelta(seconds=20)  # for all to notice that all is well

_runs = itertools.count()  # a store may outlive a group, and keys of the last one would mislead the next


def of_this_run(place: Place, store: Any = None) -> Any:
    """What of a store, by default the one that the environment names, is this run's. Raises Lost."""
    return PrefixStore(_name(place), store or _meeting_place(place))


def _name(place: Place) -> str:
    return f"rebasin {place.job} {next(_runs)}"


def _meeting_place(place: Place) -> Any:
    """The store of the first process, at which all of them meet."""
    address, port = place.meeting()
    told = f"rebasin: {launchers.who()}waits at {address}:{port} for the others to start"
    waiting = threading.Timer(SOON, print, (told,), {"file": sys.stderr, "flush": True})
    waiting.daemon = True
    waiting.start()
    try:
        return _store(address, port, place.rank, place.size, patience_to_start(place))
    except (RuntimeError, ValueError) as error:
        raise Lost(
            f"the others are not to be reached at {address}:{port}",
            problems=[told := str(error).splitlines()[0]],
            hint="Give this run another MASTER_PORT" if "in use" in told else place.hint,
        ) from error
    finally:
        waiting.cancel()


@functools.cache
def _store(address: str, port: int, rank: int, size: int, patience: timedelta) -> Any:
    """The store of rank 0 at this place, kept for the next command of this process.

    One for each command would have its server close and another open at the same port: a rank that is
    quick with its next command would meet the server that is about to close, and wait in vain.
    """
    if ":" in address:
        address = f"[{address}]"
    # torchrun may hold the store itself, which `env://` knows; it reads what a launcher of MPI does not set
    where = "env://" if launchers.by_torchrun() else f"tcp://{address}:{port}"
    return next(iter(rendezvous(where, rank, size, timeout=patience)))[0]


def patience() -> timedelta:
    """How long a rank waits for the others within a command. Raises UsageError."""
    text = os.environ.get(TIMEOUT) or PATIENCE
    if not (found := seconds(text)):
        raise UsageError(f"{TIMEOUT} is {text[:60]!r}, and no time", hint="Write it like 90s, 20m or 2h")
    return timedelta(seconds=found)


def patience_to_start(place: Place) -> timedelta:
    """How long the first waits for the last one to start, and to be connected. Raises UsageError."""
    return min(place.patience, patience())


def excuse(message: str, code: int) -> None:
    """Tell those who wait for this rank to start why it does not come, as far as they are to be reached."""
    with suppress(RebasinError, RuntimeError):
        place = launchers.place()
        address, port = place.meeting()
        store = PrefixStore(_name(place), _store(address, port, place.rank, place.size, FAREWELL))
        if store.add(f"came {place.rank}", 1) == 1:
            _say(store, place.rank, message, code)
            until = time.monotonic() + FAREWELL.total_seconds()
            others = [f"heard {rank}" for rank in range(1, place.size)]
            while place.rank == 0 and not store.check(others) and time.monotonic() < until:
                time.sleep(0.05)  # its store goes with it: the others are to have heard


def everyone(store: Any, what: str, place: Place, patience: timedelta, value: bool = True) -> list[bool]:
    """Wait in the store until all ranks have come to this point; what they say there."""
    rank = place.rank
    points = [f"{what} {other}" for other in range(place.size)]
    until = time.monotonic() + patience.total_seconds()
    try:
        store.set(points[rank], json.dumps(value))
        while not store.check(points):  # and not `wait`, which hears neither signals nor that one has failed
            if (reason := reason_of(store, rank)) is not None:
                raise reason
            if time.monotonic() > until:
                missing = ", ".join(str(k) for k, point in enumerate(points) if not store.check([point]))
                raise Lost(
                    f"waited {patience} in vain for rank {missing}",
                    hint=place.hint,
                )
            time.sleep(0.01)
        return [json.loads(store.get(point)) for point in points]
    except RuntimeError as error:
        raise lost(error) from error


def give_reason(store: Any, rank: int, error: BaseException) -> None:
    """Say in the store why this rank leaves; the first to do so counts, and who only follows says nothing."""
    if isinstance(error, Elsewhere | Lost | dist.DistError):
        return
    with suppress(RuntimeError, AttributeError):  # the store may be gone, or not yet there
        _say(store, rank, *in_short(error))


def _say(store: Any, rank: int, message: str, code: int) -> None:
    store.compare_set("reason", "", json.dumps([rank, message, code]))


def told_alike(store: Any, rank: int, error: RebasinError) -> bool:
    """Whether another rank tells the same error: all came to it, on the same numbers."""
    reason = reason_of(store, rank)
    return reason is not None and reason.message.endswith(f" failed: {in_short(error)[0]}")


def reason_of(store: Any, rank: int) -> Lost | None:
    """Why another rank has left, where it said so."""
    with suppress(RuntimeError, AttributeError):
        if store.check(["reason"]):
            other, message, code = json.loads(store.get("reason"))
            if other != rank:
                store.set(f"heard {rank}", "")
                error = Lost(f"stopped, because rank {other} failed: {message}")
                error.exit_code = code
                return error
    return None


def lost(error: BaseException) -> Lost:
    """What torch.distributed raised, as a message."""
    found = (str(error).splitlines() or [type(error).__name__])[0]
    found = re.sub(r"^\[[^]]*\] *", "", found)  # without gloo's own place, and its advice
    found = found.partition(". This is typically")[0]
    if re.search("timed?[ -]?out", found, re.IGNORECASE):
        return Lost(f"waited in vain for another rank ({TIMEOUT} says how long)", problems=[found], hint=HINT)
    return Lost("the connection to another rank is lost", problems=[found], hint=HINT)


def in_short(error: BaseException) -> tuple[str, int]:
    """What to tell the others of an error, in a line, and the exit code for all."""
    known = account(as_theirs(error))
    return (known[0][0], known[1]) if known else (in_a_line(error), BROKEN)
