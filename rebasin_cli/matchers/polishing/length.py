"""How long something may go on: `25`, `25s`, `5m`, or `300steps`."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

from ...errors import UsageError

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
MOST = 30 * 24 * 3600.0  # seconds


def seconds_of(text: str, flag: str) -> float:
    """`60`, `60s`, `1.5m` or `1h` in seconds. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)", text.strip())
    value = float(found[1]) * UNITS[found[2]] if found else math.nan
    if not 0 < value <= MOST:
        raise UsageError(
            f"{flag} {text!r} is no time", hint="Give seconds, minutes or hours, such as 60, 60s, 5m or 1h"
        )
    return value


@dataclass(frozen=True)
class Length:
    """So many `seconds`, or so many `steps`: only the latter give the same result again."""

    seconds: float | None = None
    steps: int | None = None

    @staticmethod
    def parse(text: str, flag: str = "--polish") -> Length:
        """Raise UsageError for what is neither a time nor a number of steps."""
        if found := re.fullmatch(r"(\d{1,9})\s*steps?", text.strip()):
            if not int(found[1]):
                raise UsageError(f"{flag} {text!r} leaves nothing to do", hint="Give one step or more")
            return Length(steps=int(found[1]))
        try:
            return Length(seconds=seconds_of(text, flag))
        except UsageError as error:
            hint = f"{error.hint}, or 300steps, which gives the same result again"
            raise UsageError(error.message, hint=hint) from None

    def over(self, began: float, done: int) -> bool:
        """Whether it is, `done` steps after the moment `began` (of `time.monotonic`)."""
        if self.steps is not None:
            return done >= self.steps
        return time.monotonic() - began >= (self.seconds or 0.0)
