"""Numbers as people type them. Python's own `float` and `int` read `0_05` as 5, and digits of any script."""

from __future__ import annotations

import re
from typing import Any

_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")
_DIGITS = r"[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400}"
_REAL = re.compile(rf"\s*[+-]?((?:{_DIGITS})(e[+-]?[0-9]{{1,4}})?|inf|nan)\s*", re.IGNORECASE)


def whole(text: str) -> int:
    """A whole number: digits, and a sign. Raises ValueError."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def real(text: str) -> float:
    """A number with a point or an exponent, `inf` or `nan` too: who asks refuses those. Raises ValueError."""
    if not _REAL.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def is_number(text: str) -> bool:
    return bool(_REAL.fullmatch(text))


_TIME = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})\s*([smh]?)\s*")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST = 30 * 24 * 3600.0  # seconds


def seconds(text: str) -> float | None:
    """A time: `60`, `60s`, `5m`, `1.5h`; None for what is none, nothing, or longer than 30 days."""
    found = _TIME.fullmatch(text)
    time = float(found[1]) * _UNITS[found[2]] if found else 0.0
    return time if 0 < time <= LONGEST else None


def with_unit(time: str) -> str:
    """A time as a person reads it: of a plain number `s` is its unit."""
    return f"{time} s" if time[-1:].isdigit() else time


READ: dict[Any, Any] = {int: whole, float: real}
