"""How long something may go on: a time (`25s`), steps (`300steps`), or multiplications (`500G`, `2T`)."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

from ...errors import UsageError
from ...registry import options

WORK = {"G": 1e9, "T": 1e12, "P": 1e15}  # as SI has them: 2T are two million million
MOST = 1e21  # multiplications
NUMBER = r"([0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+)"


def multiplications(work: float) -> str:
    """So many as a length is written, to three digits: 250G, 1.5T."""
    work = float(f"{work:.3g}")
    unit = max((unit for unit in WORK if WORK[unit] <= work), key=WORK.__getitem__, default="G")
    return f"{work / WORK[unit]:.12f}".rstrip("0").rstrip(".") + unit


@dataclass(frozen=True)
class Length:
    """So many `seconds`, `steps`, or multiplications (`work`); the last two give the same result again."""

    seconds: float | None = None
    steps: int | None = None
    work: float | None = None

    @staticmethod
    def parse(text: str, flag: str = "--polish", *, steps: bool = True) -> Length:
        """Raise UsageError for what is none of these; `steps`: whether their number may be given."""
        text = text.strip()
        if steps and (found := re.fullmatch(r"(\d{1,9})\s*steps?", text)):
            if not int(found[1]):
                raise UsageError(f"{flag} {text!r} leaves nothing to do", hint="Give one step or more")
            return Length(steps=int(found[1]))
        if (time := options.seconds(text)) is not None:
            return Length(seconds=time)
        if (found := re.fullmatch(NUMBER + r"\s*([GTP])", text)) and (
            0 < (work := float(found[1]) * WORK[found[2]]) <= MOST
        ):
            return Length(work=work)
        ways = ("300steps or " if steps else "") + "2T (multiplications)"
        raise UsageError(
            f"{flag} {text!r} is no length",
            hint=f"Give a time, such as 60s, 5m or 1h, or, for the same result again, {ways}",
        )

    def over(self, began: float, steps: int, work: float) -> bool:
        """Whether it is, after so many `steps` and so much `work` since `began` (of `time.monotonic`)."""
        if self.steps is not None:
            return steps >= self.steps
        if self.work is not None:
            return work >= self.work
        return time.monotonic() - began >= (math.inf if self.seconds is None else self.seconds)
