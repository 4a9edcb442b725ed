"""Names with slots, `blocks.{i}.{part}.weight`: which tensors they speak of, and what the slots stand for.

A slot takes one or more of letters, digits and `_`, as many as it can, the first one before the next; one
that stands twice takes one value. Where a literal with another character lies between any two slots, as a
dot does, a regular expression finds them at once. Elsewhere (`{a}{b}x`) it would try every way to share the
letters out, which for a long name takes for ever: there the places that can be reached are marked from the
end, and only those are tried.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, cached_property

from ..errors import SpecError

MOST = 16  # slots of one name
LONGEST = 10_000  # characters of a name that slots are looked for in
TRIES = 10_000  # for a slot that stands twice, where others may take more or less

_SLOT = re.compile(r"\{([A-Za-z]\w*|_)\}")  # `_` is what an empty slot is called
_TAKEN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


class Pattern:
    """The text of a name, taken apart."""

    def __init__(self, name: str):
        self.name = name
        pieces = _SLOT.split(name)  # text, slot, text, slot … text
        self.parts = [(k % 2 == 1, piece) for k, piece in enumerate(pieces) if piece]

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
                text += f"(?P={piece})" if piece in seen else f"(?P<{piece}>[A-Za-z0-9_]+)"
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
        end = at
        while end < len(self.text) and self.text[end] in _TAKEN:
            end += 1
        for stop in range(end, at, -1):
            if not self.reached[k + 1][stop]:
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
