"""How many threads an operation gets: all of them, as long as that is faster than one.

Where other programs are at work, a second thread waits for a processor and the first one for the second: a
millisecond's product then takes ten. So both ways are timed on the search's own products. The results are the
same bits either way, only not as soon.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

LARGE = 1 << 30  # multiplications that outlast any waiting
AGAIN = 16  # products after which the slower way is tried once more
SMALL = 1 << 22  # multiplications that are not worth a second thread
ROWS = 256  # of either side, below which products are summed differently by many threads


class Pace:
    """Speeds with one and with all `threads`; torch itself is held to one in between."""

    def __init__(self, threads: int):
        self.threads = threads
        self._speeds: dict[int, float] = {}  # multiplications a second, by number of threads
        self._count = 0

    @property
    def best(self) -> int:
        return max(self._speeds, key=self._speeds.__getitem__, default=1)

    def add_product(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """a·bᵀ, added to `out`: the same bits whatever the threads."""
        (m, k), n = a.shape, b.shape[0]
        work = m * k * n
        if min(m, n) < ROWS or work <= SMALL:
            out.addmm_(a, b.T)
            return
        with self.product(work):
            out.addmm_(a, b.T)

    @contextlib.contextmanager
    def product(self, work: int) -> Iterator[None]:
        """Threads for so many multiplications, which are timed."""
        count = self.threads if work >= LARGE else self._next()
        began = time.perf_counter()
        with self.threaded(count):
            yield
        speed = work / max(1e-9, time.perf_counter() - began)
        self._speeds[count] = (self._speeds.get(count, speed) + speed) / 2

    def _next(self) -> int:
        self._count += 1
        for count in (self.threads, 1):
            if count not in self._speeds:
                return count
        if self._count % AGAIN == 0:
            return self.threads + 1 - self.best
        return self.best

    @contextlib.contextmanager
    def threaded(self, count: int | None = None) -> Iterator[None]:
        """So many threads, or as many as are best so far."""
        torch.set_num_threads(self.best if count is None else count)
        try:
            yield
        finally:
            torch.set_num_threads(1)
