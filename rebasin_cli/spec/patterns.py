"""Names with slots, `blocks.{i}.{part}.weight`: which tensors they speak of, and what the slots stand for.

A slot takes one or more of letters, digits and `_`, as many as it can, the first one before the next; one
that stands twice takes one value. `{i:2|4|7}` takes these alone. Where a literal with another character lies
between any two slots, as a dot does, a regular expression finds them at once. Elsewhere (`{a}{b}x`) it would
try every way to share the letters out, which for a long name takes for ever: there the places that can be
reached are marked from the end, and only those are tried.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from ..errors import SpecError
from .notation import ALL, ENDS, SLOT, Axis, Word, parse_axis, summed

MOST = 16  # slots of one name
LONGEST = 10_000  # characters of a name that slots are looked for in
BEFORE = "<"  # what `{<i}` has in the place of an offset
TRIES = 10_000  # for a slot that stands twice, where others may take more or less

_SLOT = re.compile(r"\{([A-Za-z]\w*|_)(?::([\w|]+))?\}", re.ASCII)  # `_` is what an empty slot is called
_TAKEN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


class Pattern:
    """The text of a name, taken apart."""

    def __init__(self, name: str):
        self.name = name
        pieces = _SLOT.split(name)  # text, slot, its list or None, text, slot … text
        self.parts = [(k % 3 == 1, piece) for k, piece in enumerate(pieces) if piece and k % 3 < 2]
        self.takes = {
            slot: its.split("|") for slot, its in zip(pieces[1::3], pieces[2::3], strict=True) if its
        }

    @cached_property
    def _expression(self) -> re.Pattern[str] | None:
        """None where two slots have nothing between them that neither can take."""
        seen: set[str] = set()
        text, apart = "", True
        for slot, piece in self.parts:
            if not slot:
                text += re.escape(piece)
                apart = apart or not _TAKEN.issuperset(piece)
            elif not apart:
                return None
            else:
                kind = "|".join(self.takes[piece]) if piece in self.takes else "[A-Za-z0-9_]+"
                text += f"(?P={piece})" if piece in seen else f"(?P<{piece}>{kind})"
                apart = False
                seen.add(piece)
        return re.compile(text)

    def match(self, text: str) -> Mapping[str, str] | None:
        """What the slots stand for, None where the name does not speak of `text`.

        Raises SpecError where too many ways to read it would have to be tried.
        """
        if self._expression is not None:
            found = self._expression.fullmatch(text)
            return None if found is None else found.groupdict()
        if len(text) > LONGEST:
            return None
        return _Reading(self, text).found()

    def matches(self, text: str) -> bool:
        return self.match(text) is not None


@cache
def pattern_of(name: str) -> Pattern:
    """The pattern of a name. Raises SpecError for one of too many slots."""
    found = Pattern(name)
    if sum(slot for slot, _ in found.parts) > MOST:
        raise SpecError(f'"{name}" has more than {MOST} slots')
    return found


class _Anything:
    def __contains__(self, text: object) -> bool:
        return True


class _Reading:
    """One text read by one pattern."""

    def __init__(self, pattern: Pattern, text: str):
        self.pattern, self.text, self.tries = pattern, text, 0
        self.reached = [bytearray(len(text) + 1) for _ in range(len(pattern.parts) + 1)]
        self.reached[-1][-1] = 1
        for k in range(len(pattern.parts) - 1, -1, -1):
            self._mark(k)

    def _mark(self, k: int) -> None:
        """Where part `k` may begin, so that the others fit behind it."""
        (slot, piece), here, behind = self.pattern.parts[k], self.reached[k], self.reached[k + 1]
        if slot:
            for at in range(len(self.text) - 1, -1, -1):
                here[at] = self.text[at] in _TAKEN and (behind[at + 1] or here[at + 1])
            return
        at = self.text.find(piece)
        while at >= 0:
            here[at] = behind[at + len(piece)]
            at = self.text.find(piece, at + 1)

    def found(self) -> dict[str, str] | None:
        return self._from(0, 0, {}) if self.reached[0][0] else None

    def _from(self, k: int, at: int, taken: dict[str, str]) -> dict[str, str] | None:
        if k == len(self.pattern.parts):
            return taken
        slot, piece = self.pattern.parts[k]
        if not slot or piece in taken:
            text = taken[piece] if slot else piece
            there = self.text.startswith(text, at) and self.reached[k + 1][at + len(text)]
            return self._from(k + 1, at + len(text), taken) if there else None
        takes: Container[str] = self.pattern.takes.get(piece, _Anything())
        end = at
        while end < len(self.text) and self.text[end] in _TAKEN:
            end += 1
        for stop in range(end, at, -1):
            if not self.reached[k + 1][stop] or self.text[at:stop] not in takes:
                continue
            self.tries += 1
            if self.tries > TRIES:
                raise SpecError(
                    f'"{self.pattern.name}" can be read in too many ways',
                    hint='Put something between the slots that they do not take, such as "."',
                )
            if (rest := self._from(k + 1, stop, {**taken, piece: self.text[at:stop]})) is not None:
                return rest
        return None


@dataclass(frozen=True)
class Slot:
    """`{name}` with an offset ("-1", "+1", "-0" or "") and the axis to use where nothing is found.

    `{<name}` has the offset "<".
    """

    name: str
    offset: str = ""
    fallback: str | None = None

    @property
    def several(self) -> bool:
        """Whether it stands for a segment of each of several values."""
        return self.offset == BEFORE or self.name == ALL


@cache
def slots_of(word: str) -> tuple[Slot, ...]:
    return tuple(
        Slot(m["name"], m["before"] or m["offset"] or "", m["fallback"]) for m in SLOT.finditer(word)
    )


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
    move among them with the other slots held still, ends that stand further right open. A slot of several
    values makes a segment of each, and none where nothing is found. `each` and `side` are the word's own.
    Raises SpecError where another slot finds nothing and there is no fallback.
    """
    slots = slots_of(word)
    values = [captured.get(slot.name) for slot in slots]
    segments: list[str] | None = None
    for k, slot in enumerate(slots):
        if slot.name in captured and not slot.offset:
            continue
        row = {
            other[k]
            for other in found.get(stem_of(word), ())
            if all(v in (o, None) for j, (o, v) in enumerate(zip(other, values, strict=True)) if j != k)
        }
        here, near = captured.get(slot.name), sorted(row, key=natural)
        if slot.several:
            segments = [v for v in near if here is None or natural(v) < natural(here)]
            values[k] = None
            if segments or slot.fallback is None:
                continue
        value = None if slot.several else _neighbour(slot, here, near)
        if value is None and slot.fallback is not None:
            return parse_axis(slot.fallback)
        if value is None:
            raise SpecError(f'"{word}": no such value was found; a fallback would be written {{…|.}}')
        values[k] = value

    def with_value(segment: str) -> Word:
        filled = iter(segment if value is None else value for value in values)
        return Word(SLOT.sub(lambda _: next(filled), word), each, side)

    return summed(map(with_value, [""] if segments is None else segments))


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
