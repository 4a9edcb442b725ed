"""Lines with slots for tensors whose names differ in numbers only, and what their words stand for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ...spec.notation import parse_axes, words_of
from ...spec.patterns import natural, slots_of, stem_of
from ...spec.spec import Entry

SLOT, EXCEPTION = 0.01, 0.05  # what they cost beside their line, in lines: of texts as long, the plainer one
RARE = 0.25  # of a family's tensors: fewer may be exceptions that are not at its ends
NAMES = "ijklmnopq"
RUN = re.compile(r"(?<!\d)\d+[a-z]?(?=[._/-]|$)")
WORD = re.compile(r"[A-Za-z][\w.-]*")

_SLOT = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True)
class Member:
    """A tensor: its name cut at the numbers, their values, its axes as texts."""

    name: str
    runs: tuple[str, ...]
    axes: tuple[str, ...]
    statistic: bool = False


@dataclass(frozen=True)
class Family:
    """One line with slots and the tensors that it is meant for."""

    entry: Entry
    members: tuple[Member, ...]
    slots: tuple[int, ...] = ()  # which of the members' numbers

    def captured(self, member: Member) -> dict[str, str]:
        return dict(zip(NAMES, (member.runs[k] for k in self.slots), strict=False))


def with_slots(text: str, slots: Mapping[int, str]) -> str:
    """The text with its k-th number replaced by `slots[k]`."""
    count = iter(range(len(text)))
    return RUN.sub(lambda run: slots.get(next(count), run[0]), text)


@cache
def covers(general: str, stem: str) -> bool:
    """Whether `b{}.{}` says more than `b{}.1`."""
    pattern = re.escape(general).replace(r"\{\}", r"(?:\{\}|\d+[a-z]?)")
    return general != stem and re.fullmatch(pattern, stem) is not None


class Reading:
    """What a word with slots stands for, where `found` says which values there are.

    At most one slot has an offset. `notation.fill` has the last word on what is found with this.
    """

    def __init__(self, found: Callable[[str], set[tuple[str, ...]]]):
        self.found = cache(found)
        self._row = cache(self._sorted)
        self.word = cache(self._word)

    def _word(self, template: str, values: tuple[str, ...]) -> str | None:
        """The word, or the fallback; None where no value is found. `values` are those of i, j, k …"""
        slots = slots_of(template)
        captured = dict(zip(NAMES, values, strict=False))
        filled = [captured[slot.name] for slot in slots]
        for k, slot in enumerate(slots):
            if slot.offset:
                row = self._row(stem_of(template), k, (*filled[:k], *filled[k + 1 :]))
                here = natural(filled[k])
                side = {
                    "-1": [value for key, value in row if key < here][-1:],
                    "-0": [value for key, value in row if key <= here][-1:],
                    "+1": [value for key, value in row if key > here][:1],
                }[slot.offset]
                if not side:
                    return slot.fallback
                filled[k] = side[0]
        rest = iter(filled)
        return _SLOT.sub(lambda _: next(rest), template)

    def _sorted(self, stem: str, k: int, others: tuple[str, ...]) -> list[tuple[tuple[object, ...], str]]:
        found = {value[k] for value in self.found(stem) if (*value[:k], *value[k + 1 :]) == others}
        return sorted((natural(value), value) for value in found)


Values = Mapping[str, tuple[str, ...]]  # of each tensor, by name: those of i, j, k …
Fits = Callable[[int, int, str], frozenset[Member]]  # of whom a template says word `p` of axis `k`


class Group:
    """The best lines for tensors whose names differ in numbers only."""

    def __init__(self, reading: Reading, kept_apart: Iterable[str] = ()):
        self.word, self.kept_apart = reading.word, tuple(kept_apart)
        self._templates = cache(lambda word, values: tuple(self._ways(word, values)))

    def best(self, members: Sequence[Member]) -> tuple[float, list[Family]]:
        """The cost in lines, and the families among them."""
        varying = [k for k in range(len(members[0].runs)) if len({member.runs[k] for member in members}) > 1]
        options: list[tuple[float, list[Family]]] = [(float(len(members)), [])]
        if not varying or len(varying) > len(NAMES):
            return options[0]
        family = self._family(members, tuple(varying))
        if family is not None:
            alone = len(members) - len(family.members)
            options.append((1 + alone * (1 + EXCEPTION) + _oddity(family.entry), [family]))
        if len(varying) > 1 and (family is None or len(family.members) < len(members)):
            for k in varying:
                parts: dict[str, list[Member]] = {}
                for member in members:
                    parts.setdefault(member.runs[k], []).append(member)
                found = [self.best(part) for part in parts.values()]
                options.append((sum(cost for cost, _ in found), [f for _, many in found for f in many]))
        return min(options, key=lambda option: option[0])

    def _family(self, members: Sequence[Member], slots: tuple[int, ...]) -> Family | None:
        """One line for at least half of them."""
        values = {member.name: tuple(member.runs[k] for k in slots) for member in members}
        fits = cache(lambda k, p, template: frozenset(self._fitting(members, values, k, p, template)))
        left, lines = list(members), []
        while left:
            axes, covered = self._grown(left[0], members, values, fits)
            lines.append((axes, covered))
            left = [member for member in left[1:] if member not in covered]
        name = with_slots(
            members[0].name, {k: f"{{{title}}}" for k, title in zip(slots, NAMES, strict=False)}
        )
        found = []
        for axes, covered in lines:
            entry = Entry(name, parse_axes(" ".join(axes)), statistic=members[0].statistic)
            enough = len(covered) >= max(2 if _plausible(entry) else 3, len(members) / 2)
            if enough and _goes_on(covered, members):
                found.append(Family(entry, tuple(m for m in members if m in covered), slots))
        return max(found, key=lambda f: (len(f.members), -_oddity(f.entry)), default=None)

    def _grown(
        self, seed: Member, members: Sequence[Member], values: Values, fits: Fits
    ) -> tuple[tuple[str, ...], frozenset[Member]]:
        """The line that says of `seed` what it should, and of as many others as goes: word by word."""
        covered, axes = frozenset(members), []
        for k, axis in enumerate(seed.axes):
            shape, chosen = WORD.sub("", axis), []
            if shape:  # not a single word
                covered &= {member for member in members if WORD.sub("", member.axes[k]) == shape}
            for p, word in enumerate(WORD.findall(axis)):
                options = list(self._templates(word, values[seed.name]))
                if word == axis:
                    options += self._with_fallback(options, members, values, k)
                best = max(
                    options, key=lambda option: len(covered & fits(k, p, option))
                )  # the first of equals
                covered &= fits(k, p, best)
                chosen.append(best)
            rest = iter(chosen)
            axes.append(WORD.sub(partial(_next, rest), axis))
        return tuple(axes), covered

    def _ways(self, word: str, values: tuple[str, ...]) -> Iterator[str]:
        """The ways to write the word, each slot once and in the order of the name: the plainest first."""
        plain: list[dict[int, str]] = [{}]
        looking: list[dict[int, str]] = []
        for r, run in enumerate(RUN.findall(word)):
            longer, near = [], []
            for title, value in zip(NAMES, values, strict=False):
                order = (natural(run) > natural(value)) - (natural(run) < natural(value))
                offsets = {-1: ("-1", "-0"), 0: ("-0",), 1: ("+1",)}[order]
                free = [choice for choice in plain if all(slot[1] < title for slot in choice.values())]
                longer += [{**choice, r: f"{{{title}}}"} for choice in free if not order]
                near += [{**choice, r: f"{{{title}{offset}}}"} for choice in free for offset in offsets]
                free = [choice for choice in looking if all(slot[1] < title for slot in choice.values())]
                near += [{**choice, r: f"{{{title}}}"} for choice in free if not order]
            plain, looking = [*longer, *plain], [*near, *looking]
        yield from filter(self._allowed, (with_slots(word, choice) for choice in plain))
        for template in (with_slots(word, choice) for choice in looking):
            if self.word(template, values) == word and ("-0" not in template or self._allowed(template)):
                yield template

    def _allowed(self, template: str) -> bool:
        return not any(covers(stem_of(template), stem) for stem in self.kept_apart)

    def _with_fallback(
        self, options: Sequence[str], members: Sequence[Member], values: Values, k: int
    ) -> list[str]:
        """`h{i-1}` as `h{i-1|X}`: X is what most of those have that find nothing."""
        found = []
        for template in options:
            if re.search(r"[+-]1\}", template):
                without = Counter(m.axes[k] for m in members if self.word(template, values[m.name]) is None)
                ends = template.endswith("}")  # b{i-1|stem}.left would read as if it were stem.left
                plain = [t for t, _ in without.most_common() if t == "." or (ends and WORD.fullmatch(t))]
                found += [re.sub(r"([+-]1)\}", rf"\1|{text}}}", template) for text in plain[:1]]
        return found

    def _fitting(
        self, members: Sequence[Member], values: Values, k: int, p: int, template: str
    ) -> Iterator[Member]:
        for member in members:
            plain = member.axes[k][:1] == "|"  # the side of a word, and no fallback
            words = [member.axes[k]] if "|" in template and not plain else WORD.findall(member.axes[k])
            if p < len(words) and self.word(template, values[member.name]) == words[p]:
                yield member


def _goes_on(covered: Collection[Member], members: Collection[Member]) -> bool:
    """Whether the line would say the right thing of one layer more: what it does not cover is at an end.

    Or it is rare: of layers that alternate, every other one is not.
    """
    inside = sum(not _at_an_end(member, members) for member in members if member not in covered)
    return inside < RARE * len(members)


def _at_an_end(member: Member, members: Collection[Member]) -> bool:
    for k, run in enumerate(member.runs):
        others = (*member.runs[:k], *member.runs[k + 1 :])
        row = {m.runs[k] for m in members if (*m.runs[:k], *m.runs[k + 1 :]) == others}
        if len(row) > 1 and run in (min(row, key=natural), max(row, key=natural)):
            return True
    return False


def _next(rest: Iterator[str], _: re.Match[str]) -> str:
    return next(rest)


def _plausible(entry: Entry) -> bool:
    """Whether words with slots are called like their tensor: with others, it may be chance."""
    words = (word for axis in entry.axes for word in words_of(axis) if slots_of(word))
    begin = (_SLOT.split(word, maxsplit=1)[0] for word in words)
    starts = (rf"(^|[^A-Za-z0-9])h?{re.escape(start.removeprefix('h'))}\{{" for start in begin)
    return all(re.search(start, entry.name) for start in starts)  # a word may say less of the path


def _oddity(entry: Entry) -> float:
    slots = [slot for axis in entry.axes for word in words_of(axis) for slot in slots_of(word)]
    return SLOT * (entry.name.count("{") + sum(bool(slot.offset) + bool(slot.fallback) for slot in slots))
