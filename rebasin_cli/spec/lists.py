"""Tensors of a list, `experts.{}.w1.weight`: read as one, stacked along a new first axis.

The first axis of such a line is the order of the list. From here on everything is said of the stacked tensor,
under the line's name with its other slots filled in; which tensors it stands for is all that is kept beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..types import Shapes
from .notation import Axis, Word
from .patterns import natural
from .spec import EMPTY, Entry, Stack

Chosen = Mapping[str, tuple[Entry, Mapping[str, str]]]


@dataclass(frozen=True)
class Listed:
    """The tensors that one line reads as one: by what stands in its empty slot, in natural order."""

    name: str
    members: Mapping[str, str]


def gathered(chosen: Chosen) -> tuple[Chosen, dict[str, Listed]]:
    """The lines that speak of each tensor, those of a list as one tensor; and the lists by name."""
    found: dict[str, tuple[Entry, Mapping[str, str]]] = {}
    members: dict[str, dict[str, str]] = {}
    for tensor, (entry, captured) in chosen.items():
        if EMPTY not in captured:
            found[tensor] = entry, captured
            continue
        name, others = entry.name, {slot: v for slot, v in captured.items() if slot != EMPTY}
        for slot, value in others.items():
            name = name.replace(f"{{{slot}}}", value)
        found[name] = entry, others
        members.setdefault(name, {})[captured[EMPTY]] = tensor
    return found, {
        name: Listed(name, {value: own[value] for value in sorted(own, key=natural)})
        for name, own in members.items()
    }


def shapes_of(lists: Mapping[str, Listed], shapes: Shapes, problems: list[str]) -> dict[str, tuple[int, ...]]:
    """All shapes, those of a list as one; the first member's where they differ, which is a problem."""
    inside = {tensor for listed in lists.values() for tensor in listed.members.values()}
    found = {name: tuple(shape) for name, shape in shapes.items() if name not in inside}
    for name, listed in lists.items():
        first, *others = listed.members.values()
        wrong = [other for other in others if tuple(shapes[other]) != tuple(shapes[first])]
        if wrong:
            problems += [f"{tensor}  is {show(shapes[tensor])}" for tensor in (first, *wrong)]
            problems.append(f'  these should be equal: "{name}" reads them as one tensor')
        found[name] = (len(listed.members), *shapes[first])
    return found


def stacks_of(
    lists: Mapping[str, Listed],
    axes: Mapping[str, Sequence[Axis]],
    shapes: dict[str, tuple[int, ...]],
    problems: list[str],
) -> dict[str, Stack]:
    """Each list with the word that orders it. All lists of one word must have the same members.

    Where they have not, `shapes` are changed to what they would be: one problem is enough.
    """
    found: dict[str, Stack] = {}
    of_word: dict[str, list[Listed]] = {}
    for name, listed in lists.items():
        if name not in axes:  # a problem is told already
            continue
        first = next(iter(axes[name]), None)
        if not isinstance(first, Word) or first.each or first.side:
            said = "nothing" if first is None else f'"{first}"'
            problems.append(
                f"{name}  stands for a list, whose order is the first axis: a word without a star, not {said}"
            )
            continue
        found[name] = Stack(first.name, tuple(listed.members.values()))
        of_word.setdefault(first.name, []).append(listed)
    for word, its in of_word.items():
        every = {value: listed for listed in reversed(its) for value in listed.members}
        for listed in its:
            shapes[listed.name] = (len(every), *shapes[listed.name][1:])
            problems += [
                f'{listed.name.replace("{}", value)}  is not in the checkpoint, but the list "{word}" has '
                f"{every[value].members[value]}"
                for value in sorted(every.keys() - listed.members.keys(), key=natural)
            ]
    return found


def show(shape: Sequence[int]) -> str:
    """A shape as a person reads it."""
    return "×".join(map(str, shape)) or "a scalar"
