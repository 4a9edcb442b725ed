"""What is left of a budget of seconds, or of multiplications, which are as many on every machine."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...registry.user_code import Passing
from ..polish.length import Length, multiplications

SPEED = 2e10  # multiplications a second, about those of a core: counted work is shared out in its seconds


class OverTime(Passing):
    """The time of what is at work is over."""


class Clock:
    """A budget that has begun. Whoever `counts` takes what is reckoned for a step, not what it takes here.

    So the same models and data get the same steps wherever they are taken, however busy the machine is. What
    searches of weights alone take is not counted.
    """

    def __init__(self, seconds: float, *, counts: bool = False):
        self.seconds, self.counts = seconds, counts
        self.began, self._spent = time.monotonic(), 0.0
        self._ends = math.inf

    @classmethod
    def of(cls, budget: Length) -> Clock:
        if budget.work is not None:
            return cls(budget.work / SPEED, counts=True)
        if budget.seconds is None:
            raise ValueError("a budget is a time or multiplications")
        return cls(budget.seconds)

    @property
    def left(self) -> float:
        spent = self._spent if self.counts else time.monotonic() - self.began
        return self.seconds - spent

    def spent(self, began: float, reckoned: float) -> float:
        """Seconds of what `began` then (of `time.monotonic`); where they count, those `reckoned` for it."""
        self._spent += reckoned
        return reckoned if self.counts else time.monotonic() - began

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let `look` raise once so many seconds are over; never where multiplications are counted."""
        self._ends = math.inf if self.counts else time.monotonic() + seconds
        try:
            yield
        finally:
            self._ends = math.inf

    def look(self) -> None:
        """Raises OverTime as `within` says: to be called between two batches, however slow the machine is."""
        if time.monotonic() > self._ends:
            raise OverTime

    def over(self) -> bool:
        """Whether its time is over; never where multiplications are counted."""
        return not self.counts and self.left <= 0

    def told(self, seconds: float) -> str:
        """So much of it, for people."""
        if not self.counts:
            return f"{seconds:.1f} s"
        return f"{multiplications(seconds * SPEED)} multiplications"

    def length(self, seconds: float) -> Length:
        """So much of it, for a search."""
        return Length(work=seconds * SPEED) if self.counts else Length(seconds=seconds)
