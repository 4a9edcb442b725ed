"""Modules of a list that may change places, written as one: `experts.{}.w1.weight`, in an order of its own.

What each of them has for itself (its hidden units) then has an order of its own within each. That is said of
the finished lines of a spec, one a tensor; the proof comes after it, as always.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from ...groups import PERMUTATION, find
from ...spec.notation import Axis, Fixed, Word, parse_axes, parts_of, rewrite, words_of
from ..rules.alike import Alike
from .unit_names import HIDDEN


@dataclass(frozen=True)
class Lines:
    """A spec in parts: one line a tensor, and what is said of its words."""

    tensors: Mapping[str, str]
    statistics: Mapping[str, str]
    sizes: Mapping[str, int] = field(default_factory=dict)
    within: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def every(self) -> dict[str, str]:
        return {**self.tensors, **self.statistics}


class Unlisted(Exception):
    """Why a list cannot be written."""


def listed(lines: Lines, one: Alike) -> tuple[Lines, dict[str, tuple[str, ...]]]:
    """The lines with this list as one, and of each word that is new those that it stands for.

    Raises Unlisted where the notation cannot say it.
    """
    axes = {name: parse_axes(text) for name, text in lines.every.items()}
    members = list(one.numbers.values())
    taken = {name for names in members for name in names} | {name for name, _ in one.beside}
    if not taken <= axes.keys() or any("{}" in name for name in taken):
        raise Unlisted("its tensors are in another list")
    if any(axes[name][k] != Fixed() for name, k in one.beside):
        raise Unlisted("the axes beside it move with something else")
    own = _own(axes, members)
    starred = {word for line in axes.values() for axis in line for word in _starred(axis)}
    outer = {*lines.within.values()} | {w for line in axes.values() for a in line for w in _outer(a)}
    if starred & {word for its in own for word in its} or outer & {word for its in own for word in its}:
        raise Unlisted("orders within its modules' orders would lie too deep for the notation")
    if any(not find(lines.groups.get(word, PERMUTATION)).permutes for its in own for word in its):
        raise Unlisted("its modules have units that only turn")
    known = {word for line in axes.values() for axis in line for word in words_of(axis)}
    number = next(iter(one.numbers))
    order = _unused(one.prefix.rstrip("._") or "list", known)
    renamed: dict[str, str] = {}
    for its in own:
        before, _, rest = its[0].partition(f"{one.prefix}{number}.")
        inside = rest if len(own) > 1 or re.search("[A-Za-z]", rest) else HIDDEN
        name = its[0] if before else f"{one.prefix.rstrip('.')}.{inside}"
        renamed[its[0]] = _unused(name, {*known, order, *renamed.values()})

    def leaf(axis: Axis) -> Axis:
        if isinstance(axis, Word) and axis.name in renamed:
            return Word(renamed[axis.name], each=True)
        return axis

    def stacked(section: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for name, text in section.items():
            if name in members[0]:
                rest = name[len(one.prefix) + len(number) :]
                line = Word(order), *(rewrite(axis, leaf) for axis in axes[name])
                yield f"{one.prefix}{{}}{rest}", " ".join(map(str, line))
            elif name not in taken or name in dict(one.beside):
                moved = {k for beside, k in one.beside if beside == name}
                here = (Word(order) if k in moved else axis for k, axis in enumerate(axes[name]))
                yield name, " ".join(map(str, here)) if moved else text

    gone = {word for its in own for word in its}
    sizes = {word: size for word, size in lines.sizes.items() if word not in gone}
    sizes |= {renamed[its[0]]: lines.sizes[its[0]] for its in own if its[0] in lines.sizes}
    within = {**lines.within, **dict.fromkeys(renamed.values(), order)}
    groups = {word: kind for word, kind in lines.groups.items() if word not in gone}
    found = Lines(dict(stacked(lines.tensors)), dict(stacked(lines.statistics)), sizes, within, groups)
    return found, {order: (), **{renamed[its[0]]: its for its in own}}


def _own(axes: Mapping[str, tuple[Axis, ...]], members: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Words that each module has for itself, a row of one a module; others are the same for all of them."""
    rows: dict[str, tuple[str, ...]] = {}
    for names in zip(*members, strict=True):
        for same in zip(*(axes[name] for name in names), strict=True):
            for row in _rows(same):
                if rows.setdefault(row[0], row) != row:
                    raise Unlisted("its modules have units in unlike places")
    found = [row for row in rows.values() if len({*row}) > 1]
    every = [word for row in found for word in row]
    if len({*every}) < len(every):
        raise Unlisted("some of its modules share units")
    inside = {name for names in members for name in names}
    outside = {
        w for name, line in axes.items() if name not in inside for axis in line for w in words_of(axis)
    }
    if outside & {*every}:
        raise Unlisted("units of one of its modules are read elsewhere")
    return found


def _rows(same: Sequence[Axis]) -> Iterator[tuple[str, ...]]:
    """The words of axes that are built alike, place by place."""
    first = same[0]
    if isinstance(first, Word):
        words = [axis for axis in same if isinstance(axis, Word) and axis.each == first.each]
        if len(words) < len(same):
            raise Unlisted("its modules have units in unlike places")
        yield tuple(axis.name for axis in words)
    elif parts := parts_of(first):
        if not all(type(axis) is type(first) and len(parts_of(axis)) == len(parts) for axis in same):
            raise Unlisted("its modules have units in unlike places")
        for inner in zip(*map(parts_of, same), strict=True):
            yield from _rows(inner)
    elif any(axis != first for axis in same):
        raise Unlisted("its modules have units in unlike places")


def _starred(axis: Axis) -> Iterator[str]:
    if isinstance(axis, Word) and axis.each:
        yield axis.name
    for part in parts_of(axis):
        yield from _starred(part)


def _outer(axis: Axis) -> Iterator[str]:
    """Words on an axis that has starred ones too: these may lie within them."""
    if any(True for _ in _starred(axis)):
        yield from words_of(axis)


def _unused(name: str, known: set[str]) -> str:
    return next(n for n in chain([name], (f"{name}.{k}" for k in count())) if n not in known)
