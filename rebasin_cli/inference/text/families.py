"""From one line a tensor to one line a family, where layers repeat.

    blocks.0.up.weight: "blocks.0.up stream"        blocks.{i}.up.weight: "blocks.{i}.up stream"
    blocks.1.up.weight: "blocks.1.up stream"   →    blocks.9.up.weight: "blocks.9.up last"
    blocks.9.up.weight: "blocks.9.up last"

Numbers at the end of a part of a name are what may become a slot. Tensors whose names differ in numbers only
are one line with slots, or fall apart by one of the numbers, whichever is fewer lines; what the line of most
does not say, an exact line does: at the ends, or rarely, since a family is a rule for one layer more. Every
line is read back as `fit` would before it is believed, and a tensor for which it says something else gets an
exact line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ...errors import SpecError
from ...spec.notation import Axis, Word, parse_axes, rewrite, words_of
from ...spec.patterns import fill, pattern_of, slots_of, stem_of
from ...spec.spec import Entry
from .templates import NAMES, RUN, WORD, Family, Group, Member, Reading, covers, with_slots

ROUNDS = 6  # a family can make another one possible: it finds the values that the other's `{i-1}` looks among
MANY = 16  # words on one axis, above which a tensor is not looked at: growing concatenations make no family
Told = TypeVar("Told", int, str)
Key = tuple[str, int, bool]  # what stands alike in names, how many axes, whether it is a statistic


def compact(
    tensors: Mapping[str, str], statistics: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The lines of both sections, fewer of them; each family stands where its first tensor stood.

    Keys may end in a rank, `features.{i}.weight[4]`. What the lines say of these tensors is what they said
    before; of a tensor that is not among them they may say something as well.
    """
    members = [*_members(tensors, False), *_members(statistics, True)]
    groups: dict[Key, list[Member]] = {}
    for member in members:
        if any(len(WORD.findall(axis)) > MANY for axis in member.axes):
            continue
        key = RUN.sub("{}", member.name), len(member.axes), member.statistic
        groups.setdefault(key, []).append(member)
    every = {word for member in members for axis in member.axes for word in WORD.findall(axis)}
    reading = Reading(lambda stem: _values(stem, every))
    kept_apart: dict[Key, set[str]] = {key: set() for key in groups}
    best: list[Family] = []
    for _ in range(ROUNDS):
        built = {key: Group(reading, kept_apart[key]).best(group)[1] for key, group in groups.items()}
        hoped = [family for families in built.values() for family in families]
        families = _settled(_apart(hoped, members))
        best = max(best, families, key=_saved)
        if _saved(families) == _saved(hoped):
            break
        if not _keep_apart(built, kept_apart, reading):
            reading = Reading(partial(_of_stem, _found_by(families)))  # fewer values than were hoped for
    return _lines(tensors, best), _lines(statistics, best)


def _of_stem(found: Mapping[str, set[tuple[str, ...]]], stem: str) -> set[tuple[str, ...]]:
    return found.get(stem, set())


def _keep_apart(
    built: Mapping[Key, Sequence[Family]], kept_apart: Mapping[Key, set[str]], reading: Reading
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
            if stem not in kept_apart[key] and any(covers(g, stem) for g in _stems(many, offset=False)):
                kept_apart[key].add(stem)
                told = True
                break
    return told


def _stems(families: Iterable[Family], *, offset: bool) -> set[str]:
    """The stems of words that look for a neighbour, or of those that do not."""
    words = {word for family in families for axis in family.entry.axes for word in words_of(axis)}
    return {stem_of(w) for w in words if slots_of(w) and any(s.offset for s in slots_of(w)) == offset}


def compact_words(told: Mapping[str, Told], words: Iterable[str]) -> dict[str, Told]:
    """`blocks.{i}.heads: 12` for what is told of words that differ in numbers only, among all `words`.

    A word that is told of another has that one's numbers as slots.
    """
    groups: dict[str, list[str]] = {}
    for word in told:
        groups.setdefault(RUN.sub("{}", word), []).append(word)
    every = set(words)
    found: dict[str, Told] = {}
    for group in groups.values():
        runs = [RUN.findall(word) for word in group]
        varying = [k for k in range(len(runs[0])) if len({run[k] for run in runs}) > 1]
        slots = {k: f"{{{title}}}" for k, title in zip(varying, NAMES, strict=False)}
        key = with_slots(group[0], slots)
        claimed = {word for word in every if pattern_of(key).matches(word)}
        said = {_templated(told[word], word, slots) for word in group}
        alike = len(said) == 1 and claimed == set(group)
        found |= {key: said.pop()} if alike else {word: told[word] for word in group}
    return found


def _templated(said: Told, word: str, slots: Mapping[int, str]) -> Told:
    """What is said of a word, with the word's numbers as slots."""
    if isinstance(said, int):
        return said
    runs = RUN.findall(word)
    titles = {runs[k]: slot for k, slot in reversed(list(slots.items()))}
    return RUN.sub(lambda run: titles.get(run[0], run[0]), said)


def _members(lines: Mapping[str, str], statistic: bool) -> Iterator[Member]:
    for name, text in lines.items():
        axes = tuple(map(str, parse_axes(text)))
        yield Member(name, tuple(RUN.findall(name)), axes, statistic)


def _values(stem: str, words: set[str]) -> set[tuple[str, ...]]:
    """The numbers in all words of a stem: what would be found if every word were in a family."""
    pattern = re.compile(re.escape(stem).replace(r"\{\}", r"(\d+[a-z]?)"))
    return {match.groups() for word in words if (match := pattern.fullmatch(word))}


def _saved(families: Sequence[Family]) -> int:
    return sum(len(family.members) - 1 for family in families)


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


def _read(
    entry: Entry, captured: dict[str, str], found: dict[str, set[tuple[str, ...]]]
) -> tuple[str, ...] | None:
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
