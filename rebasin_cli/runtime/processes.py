"""Several processes as one, by torch.distributed: sums, errors that end all of them, signals.

Small things and CPU tensors go through gloo, tensors on GPUs through NCCL. A rank that fails by itself says
why where they met (`rendezvous`); the others notice by the closed connection and look there.
"""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..errors import Elsewhere, Lost, RebasinError, UsageError
from . import launchers
from .launchers import Place
from .ranks import P, Ranks, T
from .rendezvous import (
    FAREWELL,
    everyone,
    give_reason,
    in_short,
    lost,
    of_this_run,
    patience,
    patience_to_start,
    reason_of,
    told_alike,
)
from .signals import Ending, listening


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
                self.store.set(done, pickle.dumps((in_short(error), None)))
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
                if (reason := reason_of(self.store, self.rank)) is not None:
                    raise reason
                time.sleep(0.05)
            return cast(bytes, self.store.get(key))
        except RuntimeError as error:  # the store is gone, and the first rank with it
            self.leave()
            raise lost(error) from error

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
                self._from_first((in_short(error), None))
            raise
        with suppress(*[] if must_tell else [Lost]):
            self._from_first((None, result))
        return result

    def each(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        found: list[T] = []
        self.shared(lambda: found.append(step(*args, **kwargs)))
        return found[0]

    def shared(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        result, error = None, None
        try:
            result = step(*args, **kwargs)
        except Exception as raised:
            error = raised
        mine = None if error is None else (isinstance(error, Elsewhere), self.rank, in_short(error))
        every = self.all((mine, result))
        if not (failed := [its for its, _ in every if its is not None]):
            return [cast(T, found) for _, found in every]
        _, rank, told = min(failed)  # of a step within this one the rank that failed tells it
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
            raise lost(error) from error


def _machine() -> str:
    """What ranks have alike whose memory is one: a name alone may be that of another machine, too."""
    return f"{socket.gethostname()} {uuid.getnode():x}"


def _affinity() -> tuple[int, ...]:
    """The cores that this process may use; those of all where the system does not say."""
    allowed = getattr(os, "sched_getaffinity", None)
    return tuple(sorted(allowed(0))) if allowed is not None else tuple(range(os.cpu_count() or 1))


# ---------------------------------------------------------------------------------------- together and apart


@contextmanager
def joined(device: str, store: Any = None) -> Iterator[Together]:
    """All processes, met in `store` (by default the one that the environment names), for this block."""
    place = launchers.place()
    rank, size = place.rank, place.size
    ending = Ending()
    with listening(ending):
        try:
            patience()  # what is no time, before anything waits
            store = of_this_run(place, store)
            if store.add(f"came {rank}", 1) > 1:
                raise Lost(
                    f"rank {rank} of another run has come to the place where this one meets",
                    hint="Give this run another MASTER_PORT",
                )
            on_gpu = _meet(store, place, torch.device(device))
            together = Together(rank, size, store, ending, on_gpu)
            with together.cores():
                yield together
            with suppress(Lost):  # before one closes its connections, its last words must have been heard
                everyone(store, "done", place, FAREWELL)
        except BaseException as error:
            ending.begun = True
            give_reason(store, rank, error)
            if isinstance(error, RebasinError) and told_alike(store, rank, error):
                raise Elsewhere(error.message, error.exit_code) from error
            if isinstance(error, Lost | dist.DistError):  # an NCCL error may come up at any later step
                raise reason_of(store, rank) or (error if isinstance(error, Lost) else lost(error)) from error
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _meet(store: Any, place: Place, device: torch.device) -> bool:
    """Wait for all, and connect them; whether GPUs are connected directly."""
    apart = device.type == "cuda" and place.local_size <= torch.cuda.device_count()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # NCCL refuses two processes on one GPU; then, or where one machine has none, all go through the CPU.
    wait = patience_to_start(place)
    on_gpu = all(everyone(store, "here", place, wait, apart))
    kind = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    later = getattr(distributed_c10d, "_set_pg_timeout", None)  # PyTorch's own, which it may take away
    timeout = patience() if later is None else wait
    of: dict[str, Any] = {"rank": place.rank, "world_size": place.size, "timeout": timeout}
    try:
        dist.init_process_group(kind, store=store, **of)
    except RuntimeError as error:
        raise lost(error) from error
    # One that is connected and fails at once would leave those that still try to reach it waiting.
    everyone(store, "connected", place, wait)
    if later is not None:
        later(patience())
    return on_gpu
