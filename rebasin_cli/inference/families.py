"""From one line a tensor to one line a family, where layers repeat.

    blocks.0.up.weight: "blocks.0.up stream"        blocks.{i}.up.weight: "blocks.{i}.up stream"
    blocks.1.up.weight: "blocks.1.up stream"   →    blocks.9.up.weight: "blocks.9.up last"
    blocks.9.up.weight: "blocks.9.up last"

Numbers at the end of a part of a name are what may become a slot. Tensors whose names differ in numbers only
are one line with slots, or fall apart by one of the numbers, whichever is fewer lines; what the line of most
does not say, an exact line does. Every line is read back as `fit` would before it is believed, and a tensor
for which it says something else gets an exact line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from ..errors import SpecError
from ..spec.naming import pattern_of
from ..spec.notation import Axis, Word, fill, natural, parse_axes, rewrite, slots_of, stem_of, words_of
from ..spec.spec import Entry

ROUNDS = 6  # a family can make another one possible: it finds the values that the other's `{i-1}` looks among
SLOT, EXCEPTION = 0.01, 0.05  # what they cost beside their line, in lines: of texts as long, the plainer one
MANY = 16  # words on one axis, above which a tensor is not looked at: growing concatenations make no family
NAMES = "ijklmnopq"

T = TypeVar("T")

_RUN = re.compile(r"(?<!\d)\d+[a-z]?(?=[._/-]|$)")
_WORD = re.compile(r"[A-Za-z][\w.-]*")
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


def compact(
    tensors: Mapping[str, str], statistics: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The lines of both sections, fewer of them; each family stands where its first tensor stood.

    Keys may end in a rank, `features.{i}.weight[4]`. What the lines say of these tensors is what they said
    before; of a tensor that is not among them they may say something as well.
    """
    members = [*_members(tensors, False), *_members(statistics, True)]
    groups: dict[tuple, list[Member]] = {}
    for member in members:
        if any(len(_WORD.findall(axis)) > MANY for axis in member.axes):
            continue
        key = _RUN.sub("{}", member.name), len(member.axes), member.statistic
        groups.setdefault(key, []).append(member)
    every = {word for member in members for axis in member.axes for word in _WORD.findall(axis)}
    reading = Reading(lambda stem: _values(stem, every))
    kept_apart: dict[tuple, set[str]] = {key: set() for key in groups}
    best: list[Family] = []
    for _ in range(ROUNDS):
        built = {key: _Group(reading, kept_apart[key]).best(group)[1] for key, group in groups.items()}
        hoped = [family for families in built.values() for family in families]
        families = _settled(_apart(hoped, members))
        best = max(best, families, key=_saved)
        if _saved(families) == _saved(hoped):
            break
        if not _keep_apart(built, kept_apart, reading):
            found = _found_by(families)  # fewer values than were hoped for
            reading = Reading(lambda stem, found=found: found.get(stem, set()))
    return _lines(tensors, best), _lines(statistics, best)


def _keep_apart(
    built: Mapping[tuple, Sequence[Family]], kept_apart: Mapping[tuple, set[str]], reading: Reading
) -> bool:
    """See that what a `b{i-1}.left` looks for is found: for each such stem, one more group has to write
    `b{i}.left` where it wrote `b{i}.{j}`. Whether there was one to tell.
    """
    families = [family for many in built.values() for family in many]
    found = _found_by(families)
    told = False
    for stem in sorted(_stems(families, offset=True)):
        if reading.found(stem) <= found.get(stem, set()):
            continue
        for key, many in built.items():
            if stem not in kept_apart[key] and any(_covers(g, stem) for g in _stems(many, offset=False)):
                kept_apart[key].add(stem)
                told = True
                break
    return told


def _stems(families: Iterable[Family], *, offset: bool) -> set[str]:
    """The stems of words that look for a neighbour, or of those that do not."""
    words = {word for family in families for axis in family.entry.axes for word in words_of(axis)}
    return {stem_of(w) for w in words if slots_of(w) and any(s.offset for s in slots_of(w)) == offset}


@cache
def _covers(general: str, stem: str) -> bool:
    """Whether `b{}.{}` says more than `b{}.1`."""
    pattern = re.escape(general).replace(r"\{\}", r"(?:\{\}|\d+[a-z]?)")
    return general != stem and re.fullmatch(pattern, stem) is not None


def compact_sizes(sizes: Mapping[str, T], words: Iterable[str]) -> dict[str, T]:
    """`blocks.{i}.heads: 12` for the sizes of words that differ in numbers only, among all `words`.

    For their groups as well.
    """
    groups: dict[str, list[str]] = {}
    for word in sizes:
        groups.setdefault(_RUN.sub("{}", word), []).append(word)
    every, found = set(words), {}
    for group in groups.values():
        runs = [_RUN.findall(word) for word in group]
        varying = [k for k in range(len(runs[0])) if len({run[k] for run in runs}) > 1]
        slots = {k: f"{{{title}}}" for k, title in zip(varying, NAMES, strict=False)}
        key = _with_slots(group[0], slots)
        claimed = {word for word in every if pattern_of(key).matches(word)}
        alike = len({sizes[word] for word in group}) == 1 and claimed == set(group)
        found |= {key: sizes[group[0]]} if alike else {word: sizes[word] for word in group}
    return found


def _members(lines: Mapping[str, str], statistic: bool) -> Iterator[Member]:
    for name, text in lines.items():
        axes = tuple(map(str, parse_axes(text)))
        yield Member(name, tuple(_RUN.findall(name)), axes, statistic)


def _values(stem: str, words: set[str]) -> set[tuple[str, ...]]:
    """The numbers in all words of a stem: what would be found if every word were in a family."""
    pattern = re.compile(re.escape(stem).replace(r"\{\}", r"(\d+[a-z]?)"))
    return {match.groups() for word in words if (match := pattern.fullmatch(word))}


def _with_slots(text: str, slots: Mapping[int, str]) -> str:
    """The text with its k-th number replaced by `slots[k]`."""
    count = iter(range(len(text)))
    return _RUN.sub(lambda run: slots.get(next(count), run[0]), text)


def _saved(families: Sequence[Family]) -> int:
    return sum(len(family.members) - 1 for family in families)


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

    def _sorted(self, stem: str, k: int, others: tuple[str, ...]) -> list[tuple[tuple, str]]:
        found = {value[k] for value in self.found(stem) if (*value[:k], *value[k + 1 :]) == others}
        return sorted((natural(value), value) for value in found)


class _Group:
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
        name = _with_slots(
            members[0].name, {k: f"{{{title}}}" for k, title in zip(slots, NAMES, strict=False)}
        )
        found = []
        for axes, covered in lines:
            entry = Entry(name, parse_axes(" ".join(axes)), statistic=members[0].statistic)
            if len(covered) >= max(2 if _plausible(entry) else 3, len(members) / 2):
                found.append(Family(entry, tuple(m for m in members if m in covered), slots))
        return max(found, key=lambda f: (len(f.members), -_oddity(f.entry)), default=None)

    def _grown(self, seed, members, values, fits) -> tuple[tuple[str, ...], frozenset[Member]]:
        """The line that says of `seed` what it should, and of as many others as goes: word by word."""
        covered, axes = frozenset(members), []
        for k, axis in enumerate(seed.axes):
            shape, chosen = _WORD.sub("", axis), []
            if shape:  # not a single word
                covered &= {member for member in members if _WORD.sub("", member.axes[k]) == shape}
            for p, word in enumerate(_WORD.findall(axis)):
                options = list(self._templates(word, values[seed.name]))
                if word == axis:
                    options += self._with_fallback(options, members, values, k)
                best = max(
                    options, key=lambda option: len(covered & fits(k, p, option))
                )  # the first of equals
                covered &= fits(k, p, best)
                chosen.append(best)
            rest = iter(chosen)
            axes.append(_WORD.sub(lambda _, rest=rest: next(rest), axis))
        return tuple(axes), covered

    def _ways(self, word: str, values: tuple[str, ...]) -> Iterator[str]:
        """The ways to write the word, each slot once and in the order of the name: the plainest first."""
        plain: list[dict[int, str]] = [{}]
        looking: list[dict[int, str]] = []
        for r, run in enumerate(_RUN.findall(word)):
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
        yield from filter(self._allowed, (_with_slots(word, choice) for choice in plain))
        for template in (_with_slots(word, choice) for choice in looking):
            if self.word(template, values) == word and ("-0" not in template or self._allowed(template)):
                yield template

    def _allowed(self, template: str) -> bool:
        return not any(_covers(stem_of(template), stem) for stem in self.kept_apart)

    def _with_fallback(self, options, members, values, k) -> list[str]:
        """`h{i-1}` as `h{i-1|X}`: X is what most of those have that find nothing."""
        found = []
        for template in options:
            if re.search(r"[+-]1\}", template):
                without = Counter(m.axes[k] for m in members if self.word(template, values[m.name]) is None)
                ends = template.endswith("}")  # b{i-1|stem}.left would read as if it were stem.left
                plain = [t for t, _ in without.most_common() if t == "." or (ends and _WORD.fullmatch(t))]
                found += [re.sub(r"([+-]1)\}", rf"\1|{text}}}", template) for text in plain[:1]]
        return found

    def _fitting(self, members, values, k, p, template) -> Iterator[Member]:
        for member in members:
            words = (
                [member.axes[k]]
                if "|" in template and member.axes[k][:1] != "|"
                else _WORD.findall(member.axes[k])
            )
            if p < len(words) and self.word(template, values[member.name]) == words[p]:
                yield member


def _plausible(entry: Entry) -> bool:
    """Whether words that look for a neighbour are called like their tensor: with others, it may be chance."""
    words = (word for axis in entry.axes for word in words_of(axis) if re.search(r"[+-]1[|}]", word))
    begin = (word[: _SLOT.search(word).start()] for word in words)
    return all(entry.name.startswith((f"{start}{{", f"{start.removeprefix('h')}{{")) for start in begin)


def _oddity(entry: Entry) -> float:
    slots = [slot for axis in entry.axes for word in words_of(axis) for slot in slots_of(word)]
    return SLOT * (entry.name.count("{") + sum(bool(slot.offset) + bool(slot.fallback) for slot in slots))


def _apart(families: Sequence[Family], members: Sequence[Member]) -> list[Family]:
    """A rank for lines that would speak of tensors of other ranks; no tensor is left to two lines."""
    ranked = []
    for family in families:
        entry = family.entry
        ranks = {len(member.axes) for member in members if entry.pattern.matches(member.name)}
        ranked.append(
            replace(family, entry=replace(entry, rank=len(entry.axes))) if len(ranks) > 1 else family
        )
    own = {member.name for family in ranked for member in family.members}
    claims: Counter[str] = Counter()
    for family in ranked:
        for member in members:
            if member.name in own and family.entry.match(member.name, (1,) * len(member.axes)) is not None:
                claims[member.name] += 1
    return _without(ranked, {name for name, count in claims.items() if count > 1})


def _without(families: Sequence[Family], names: set[str]) -> list[Family]:
    """The families without some of their tensors, and without those of which one tensor is left."""
    left = [replace(f, members=tuple(m for m in f.members if m.name not in names)) for f in families]
    return [family for family in left if len(family.members) > 1]


def _found_by(families: Sequence[Family]) -> dict[str, set[tuple[str, ...]]]:
    """For every stem, the values that plain uses of it are bound to: as `fit` collects them."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for family in families:
        words = {word for axis in family.entry.axes for word in words_of(axis)}
        plain = [w for w in words if slots_of(w) and not any(slot.offset for slot in slots_of(w))]
        for word in plain:
            values = found.setdefault(stem_of(word), set())
            for member in family.members:
                captured = family.captured(member)
                values.add(tuple(captured[slot.name] for slot in slots_of(word)))
    return found


def _settled(families: Sequence[Family]) -> list[Family]:
    """Without the tensors of which a line says something else than it should, until none is left."""
    families = list(families)
    while True:
        found = _found_by(families)
        wrong = {
            member.name
            for family in families
            for member in family.members
            if _read(family.entry, family.captured(member), found) != member.axes
        }
        if not wrong:
            return families
        families = _without(families, wrong)


def _read(entry: Entry, captured: dict[str, str], found) -> tuple[str, ...] | None:
    """What a line says of one tensor."""

    def leaf(axis: Axis) -> Axis:
        return (
            fill(axis.name, captured, found, each=axis.each, side=axis.side)
            if isinstance(axis, Word)
            else axis
        )

    try:
        return tuple(str(rewrite(axis, leaf)) for axis in entry.axes)
    except SpecError:
        return None


def _lines(lines: Mapping[str, str], families: Sequence[Family]) -> dict[str, str]:
    """The section in the order of its tensors; below a family, its exceptions."""
    spoken_for = {member.name for family in families for member in family.members}
    found: dict[str, str] = {}
    for name, text in lines.items():
        for family in families:
            if family.members[0].name in lines and family.entry.pattern.matches(name):
                rank = "" if family.entry.rank is None else f"[{family.entry.rank}]"
                key = family.entry.name + rank
                if key not in found:
                    found[key] = " ".join(map(str, family.entry.axes))
                    left = [other for other in lines if other not in spoken_for]
                    found |= {other: lines[other] for other in left if family.entry.pattern.matches(other)}
        if name not in spoken_for:
            found.setdefault(name, text)
    return found
