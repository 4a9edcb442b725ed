"""Sizes as people write them: "2GB"."""

from __future__ import annotations

import re

from ..errors import UsageError

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for ending, base in (("b", 1000), ("", 1000), ("ib", 1024))
}


def parse_size(text: str, flag: str = "") -> int:
    """Bytes: "2GB" is 2·10⁹, "2GiB" is 2·2³⁰, "1.5 GB" and a bare number work.

    Raises UsageError, which names the option that it was given with (`flag`).
    """
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-z]*)\s*", text.lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if not 1 <= size < 2**63:
        raise UsageError(
            f"{flag}{': ' * bool(flag)}{text!r} is not a size",
            hint="Expected a number with a unit, such as 500MB, 2GB or 2GiB.",
        )
    return size
