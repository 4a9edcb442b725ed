"""Several processes as one, by torch.distributed: sums, errors that end all of them, signals.

Small things and CPU tensors go through gloo, tensors on GPUs through NCCL. A rank that fails by itself says
why in the store before it leaves; the others notice by the closed connection and look there.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pickle
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ..errors import Elsewhere, Lost, RebasinError, UsageError, account
from ..registry.options import seconds
from . import launchers
from .launchers import Place
from .ranks import P, Ranks, T
from .signals import HINT, Ending, listening
from .text import in_a_line

# Longer than what one rank does while the others wait: a proof, one large assignment, writing. It is only
# for a process that hangs and a machine that vanishes without closing its connections; one that dies is
# noticed at once.
PATIENCE = "3h"
TIMEOUT = "REBASIN_TIMEOUT"  # the variable that says otherwise
SOON = 10.0  # seconds after which a process says that it waits for the others to start
FAREWELL = timedelta(seconds=20)  # for all to notice that all is well

_runs = itertools.count()  # a store may outlive a group, and keys of the last one would mislead the next


@dataclass(frozen=True)
class Together(Ranks):
    """Ranks that talk; `on_gpu` where NCCL sums what lies on a GPU."""

    store: Any = None
    ending: Ending = field(default_factory=Ending)
    on_gpu: bool = False
    waits: Iterator[int] = field(default_factory=itertools.count)
    threads: int = field(default_factory=torch.get_num_threads)

    @contextmanager
    def cores(self) -> Iterator[None]:
        """So many threads that processes of one machine have a core each, unless the user says how many."""
        mine = (_machine(), _affinity())
        alike = self.all(mine).count(mine)
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, self.threads // alike))
        try:
            yield
        finally:
            torch.set_num_threads(self.threads)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu" and not self.on_gpu:
            return self.sum(tensor.cpu()).to(tensor.device)
        tensor = tensor.contiguous()
        self._do(dist.all_reduce, tensor)
        return tensor

    def sum_float(self, value: float) -> float:
        return self.sum(torch.tensor(value, dtype=torch.float64)).item()

    def agree(self, value: float) -> float:
        return self.broadcast(torch.tensor(value, dtype=torch.float64), source=0).item()

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> torch.Tensor:
        if tensor.device.type != "cpu" and not self.on_gpu:
            return self.broadcast(tensor.cpu(), source=source).to(tensor.device)
        tensor = tensor.contiguous()
        self._do(dist.broadcast, tensor, src=source)
        return tensor

    def first(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._first(step, args, kwargs, must_tell=True)

    def last(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._first(step, args, kwargs, must_tell=False)

    def alone(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._by_first(step, args, kwargs, goes_on=False)

    def turn(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._by_first(step, args, kwargs, goes_on=True)

    def _by_first(
        self, step: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], *, goes_on: bool
    ) -> T:
        done = f"alone {next(self.waits)}"
        if self.rank > 0:
            error, result = pickle.loads(self._waited(done))
            if error is not None:
                raise Elsewhere(*error)
            return cast(T, result)
        own = torch.get_num_threads()
        torch.set_num_threads(self.threads)  # the others need none
        try:
            result = step(*args, **kwargs)
            if not goes_on:
                self.leave()
        except BaseException as error:
            self.leave()
            with suppress(RuntimeError):
                self.store.set(done, pickle.dumps((_account(error), None)))
            raise
        finally:
            torch.set_num_threads(own)
        with suppress(RuntimeError):
            self.store.set(done, pickle.dumps((None, result)))
        return result

    def _waited(self, key: str) -> bytes:
        """What the first rank says in the store, however long that takes."""
        try:
            while not self.store.check([key]):
                if (reason := _reason(self.store, self.rank)) is not None:
                    raise reason
                time.sleep(0.05)
            return cast(bytes, self.store.get(key))
        except RuntimeError as error:  # the store is gone, and the first rank with it
            self.leave()
            raise _lost(error) from error

    def machines(self, sees: bool = True) -> list[str]:
        return self.all(_machine() if sees else "")

    def _first(
        self, step: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], *, must_tell: bool
    ) -> T:
        if self.rank > 0:
            error, result = self._from_first(None)
            if error is not None:
                raise Elsewhere(*error)
            return cast(T, result)  # as the first rank has sent it
        try:
            result = step(*args, **kwargs)
            if not must_tell:
                self.leave()
        except BaseException as error:
            self.leave()
            with suppress(Lost):  # the others may be gone too, but this is why
                self._from_first((_account(error), None))
            raise
        with suppress(*[] if must_tell else [Lost]):
            self._from_first((None, result))
        return result

    def each(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        error = None
        try:
            result = step(*args, **kwargs)
        except Exception as raised:
            error = raised
        outcomes = self.all(None if error is None else _account(error))
        failed = next(((rank, told) for rank, told in enumerate(outcomes) if told is not None), None)
        if failed is None:
            return result
        rank, told = failed
        if error is not None and rank == self.rank:
            raise error
        raise Elsewhere(*told)

    def leave(self) -> None:
        self.ending.begun = True

    def check_same(self, facts: Mapping[str, Any]) -> None:
        everyone = self.all(dict(facts))
        problems = [
            f"rank {rank}  {name} differs from that of rank 0"
            for rank, theirs in enumerate(everyone)
            for name in {**everyone[0], **theirs}
            if theirs.get(name) != everyone[0].get(name)
        ]
        if problems:
            error = UsageError(
                "the processes do not all work on the same",
                problems=problems,
                hint="Give every machine the same files, options and version of rebasin",
            )
            raise error if self.rank == 0 else Elsewhere(error.message, error.exit_code)

    def _from_first(self, value: Any) -> Any:
        box = [value]
        self._do(dist.broadcast_object_list, box, src=0, device=torch.device("cpu"))
        return box[0]

    def all(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        self._do(dist.all_gather_object, found, value)
        return found

    def _do(self, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            collective(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.leave()
            raise _lost(error) from error


def _machine() -> str:
    """What ranks have alike whose memory is one: a name alone may be that of another machine, too."""
    return f"{socket.gethostname()} {uuid.getnode():x}"


def _affinity() -> tuple[int, ...]:
    """The cores that this process may use; those of all where the system does not say."""
    allowed = getattr(os, "sched_getaffinity", None)
    return tuple(sorted(allowed(0))) if allowed is not None else tuple(range(os.cpu_count() or 1))


def _lost(error: BaseException) -> Lost:
    """What torch.distributed raised, as a message."""
    found = (str(error).splitlines() or [type(error).__name__])[0]
    found = re.sub(r"^\[[^]]*\] *", "", found).partition(". This is typically")[
        0
    ]  # gloo's own place and advice
    if "imed out" in found:
        return Lost(f"waited in vain for another rank ({TIMEOUT} says how long)", problems=[found], hint=HINT)
    return Lost("the connection to another rank is lost", problems=[found], hint=HINT)


def _account(error: BaseException) -> tuple[str, int]:
    """What to tell the others of an error, in a line, and the exit code for all."""
    known = account(error)
    return (known[0][0], known[1]) if known else (in_a_line(error), 1)


# ---------------------------------------------------------------------------------------- together and apart


@contextmanager
def joined(device: str, store: Any = None) -> Iterator[Together]:
    """All processes, met in `store` (by default the one that the environment names), for this block."""
    place = launchers.place()
    rank, size = place.rank, place.size
    ending = Ending()
    with listening(ending):
        try:
            _patience()  # what is no time, before anything waits
            store = PrefixStore(f"rebasin {place.job} {next(_runs)}", store or _meeting_place(place))
            if store.add(f"came {rank}", 1) > 1:
                raise Lost(
                    f"rank {rank} of another run has come to the place where this one meets",
                    hint="Give this run another MASTER_PORT",
                )
            on_gpu = _meet(store, place, torch.device(device))
            together = Together(rank, size, store, ending, on_gpu)
            with together.cores():
                yield together
            with suppress(
                Lost
            ):  # the last words of one must have been heard before it closes its connections
                _everyone(store, "done", place, FAREWELL)
        except BaseException as error:
            ending.begun = True
            _give_reason(store, rank, error)
            if isinstance(error, RebasinError) and _told(store, rank, error):
                raise Elsewhere(error.message, error.exit_code) from error
            if isinstance(error, Lost | dist.DistError):  # an NCCL error may come up at any later step
                raise _reason(store, rank) or (error if isinstance(error, Lost) else _lost(error)) from error
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _meeting_place(place: Place) -> Any:
    """The store of the first process, at which all of them meet."""
    address, port = place.meeting()
    told = f"rebasin: {launchers.who()}waits at {address}:{port} for the others to start"
    waiting = threading.Timer(SOON, print, (told,), {"file": sys.stderr, "flush": True})
    waiting.daemon = True
    waiting.start()
    try:
        return _store(address, port, place.rank, place.size, place.patience)
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


def _patience() -> timedelta:
    """How long a rank waits for the others within a command. Raises UsageError."""
    text = os.environ.get(TIMEOUT) or PATIENCE
    if not (found := seconds(text)):
        raise UsageError(f"{TIMEOUT} is {text[:60]!r}, and no time", hint="Write it like 90s, 20m or 2h")
    return timedelta(seconds=found)


def excuse(message: str, code: int) -> None:
    """Tell those who wait for this rank to start why it does not come, as far as they are to be reached."""
    with suppress(RebasinError, RuntimeError):
        place = launchers.place()
        address, port = place.meeting()
        store = PrefixStore(
            f"rebasin {place.job} {next(_runs)}",
            _store(address, port, place.rank, place.size, FAREWELL),
        )
        if store.add(f"came {place.rank}", 1) == 1:
            store.compare_set("reason", "", json.dumps([place.rank, message, code]))
            until = time.monotonic() + FAREWELL.total_seconds()
            others = [f"heard {rank}" for rank in range(1, place.size)]
            while place.rank == 0 and not store.check(others) and time.monotonic() < until:
                time.sleep(0.05)  # its store goes with it: the others are to have heard


def _meet(store: Any, place: Place, device: torch.device) -> bool:
    """Wait for all, and connect them; whether GPUs are connected directly."""
    apart = device.type == "cuda" and place.local_size <= torch.cuda.device_count()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # NCCL refuses two processes on one GPU; then, or where one machine has none, all go through the CPU.
    on_gpu = all(_everyone(store, "here", place, place.patience, apart))
    kind = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    of: dict[str, Any] = {"rank": place.rank, "world_size": place.size, "timeout": _patience()}
    try:
        dist.init_process_group(kind, store=store, **of)
    except RuntimeError as error:
        raise _lost(error) from error
    # One that is connected and fails at once would leave those that still try to reach it waiting.
    _everyone(store, "connected", place, place.patience)
    return on_gpu


def _everyone(store: Any, what: str, place: Place, patience: timedelta, value: bool = True) -> list[bool]:
    """Wait in the store until all ranks have come to this point; what they say there."""
    rank = place.rank
    points = [f"{what} {other}" for other in range(place.size)]
    until = time.monotonic() + patience.total_seconds()
    try:
        store.set(points[rank], json.dumps(value))
        while not store.check(points):  # and not `wait`, which hears neither signals nor that one has failed
            if (reason := _reason(store, rank)) is not None:
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
        raise _lost(error) from error


def _give_reason(store: Any, rank: int, error: BaseException) -> None:
    """Say in the store why this rank leaves; the first to do so counts, and who only follows says nothing."""
    if isinstance(error, Elsewhere | Lost | dist.DistError):
        return
    message, code = _account(error)
    with suppress(RuntimeError, AttributeError):  # the store may be gone, or not yet there
        store.compare_set("reason", "", json.dumps([rank, message, code]))


def _told(store: Any, rank: int, error: RebasinError) -> bool:
    """Whether another rank tells the same error: all came to it, on the same numbers."""
    reason = _reason(store, rank)
    return reason is not None and reason.message.endswith(f" failed: {_account(error)[0]}")


def _reason(store: Any, rank: int) -> Lost | None:
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
