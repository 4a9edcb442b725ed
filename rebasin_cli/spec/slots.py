"""Slots of words in families: `h{i-1|.}` is the word at the previous value found, `.` where there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ..errors import SpecError
from .notation import ENDS, SLOT, Axis, Word, parse_axis


@dataclass(frozen=True)
class Slot:
    """`{name}` with an offset ("-1", "+1", "-0" or "") and the axis to use where nothing is found."""

    name: str
    offset: str = ""
    fallback: str | None = None


@cache
def slots_of(word: str) -> tuple[Slot, ...]:
    return tuple(Slot(m["name"], m["offset"] or "", m["fallback"]) for m in SLOT.finditer(word))


def stem_of(word: str) -> str:
    """The word with its slots emptied: `inner{s}.{b-1}` and `inner{s}.{b}` have one stem."""
    return SLOT.sub("{}", word)


@cache
def natural(value: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts 2 before 10 and 3a before 3b."""
    parts = re.findall(r"[0-9]+|[^0-9]+", value)
    numbers = (part.lstrip("0") if part[0] in "0123456789" else None for part in parts)  # of any length
    return tuple(
        (1, 0, part) if n is None else (0, len(n), n) for part, n in zip(parts, numbers, strict=True)
    )


def fill(
    word: str,
    captured: Mapping[str, str],
    found: dict[str, set[tuple[str, ...]]],
    *,
    each: bool = False,
    side: str = "",
) -> Axis:
    """The axis that a word with slots stands for, in a family member whose name bound `captured`.

    `found[stem]` holds the values bound by plain uses of the word (`h{i}`) in the whole spec; offsets
    move among them with the other slots held still, ends that stand further right open. `each` and `side` are
    the word's own. Raises SpecError where nothing is found and there is no fallback.
    """
    slots = slots_of(word)
    values = [captured.get(slot.name) for slot in slots]
    for k, slot in enumerate(slots):
        if slot.name in captured and not slot.offset:
            continue
        row = {
            other[k]
            for other in found.get(stem_of(word), ())
            if all(v in (o, None) for j, (o, v) in enumerate(zip(other, values, strict=True)) if j != k)
        }
        value = _neighbour(slot, captured.get(slot.name), sorted(row, key=natural))
        if value is None and slot.fallback is not None:
            return parse_axis(slot.fallback)
        if value is None:
            raise SpecError(f'"{word}": no such value was found; a fallback would be written {{…|.}}')
        values[k] = value
    filled = iter(value or "" for value in values)  # a slot without one has returned or raised
    return Word(SLOT.sub(lambda _: next(filled), word), each, side)


def _neighbour(slot: Slot, here: str | None, row: list[str]) -> str | None:
    if slot.name in ENDS and here is None:
        return (row[0] if slot.name == "first" else row[-1]) if row else None
    steps = int(slot.offset)
    if slot.offset == "-0":
        row, steps = [value for value in row if natural(value) <= natural(here)], 1
    elif steps < 0:
        row, steps = [value for value in row if natural(value) < natural(here)], -steps
    else:
        row, steps = [value for value in reversed(row) if natural(value) > natural(here)], steps
    return row[-steps] if len(row) >= steps else None
