"""How many threads compute, where that shows in the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

WAITING = 2  # tasks a thread that may be left for later
ROOM = 1 << 28  # bytes that these may hold

T = TypeVar("T")


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Sums that several threads split would have other last bits (docs/decisions/0005-threads.md)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def pool(threads: int) -> ThreadPoolExecutor:
    """Threads that compute, each alone."""
    # OpenMP counts the threads of every thread apart: without the initializer each has many
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


class Beside:
    """Tasks beside each other, each on one thread: their number does not change what they compute."""

    def __init__(self, pool: ThreadPoolExecutor | None, threads: int):
        self._pool, self._most = pool, WAITING * threads
        self._waiting: deque[tuple[Future[Any], int]] = deque()

    def each(self, task: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """`task` of every item; the results in the items' order."""
        return [*map(task, items)] if self._pool is None else [*self._pool.map(task, items)]

    def later(self, task: Callable[..., Any], *arguments: Any, held: int = 0) -> None:
        """Do this when there is time; what it raises comes with a later call, or with `settle`.

        `held` are the bytes that it keeps in memory until then: what keeps many is done at once.
        """
        while self._waiting and (
            len(self._waiting) >= self._most or held + sum(each for _, each in self._waiting) > ROOM
        ):
            self._wait_for_first()
        if self._pool is None or held > ROOM:
            task(*arguments)
        else:
            self._waiting.append((self._pool.submit(task, *arguments), held))

    def settle(self) -> None:
        """Wait for all that was left for later."""
        while self._waiting:
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        self._waiting.popleft()[0].result()


ALONE = Beside(None, 1)


@contextmanager
def beside(device: str | torch.device, most: int | None = None) -> Iterator[Beside]:
    """On a CPU as many threads as torch has, `most` of them, to compute beside each other; this one is one.

    On a single one beside this what is left for later is done in its order.
    """
    threads = torch.get_num_threads()
    with on_one_thread():
        if threads == 1 or torch.device(device).type != "cpu":
            yield ALONE
            return
        threads = threads if most is None else min(most, threads)
        with pool(threads) as others:
            yield Beside(others, threads)
