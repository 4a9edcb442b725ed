"""The size of every word: what axes tell, what the spec states, and what a configuration says.

`heads: 12` states one. `heads: "config.num_attention_heads"` names where it may be looked up, in the
configuration that lies beside a model's weights, and `cross: "heads"` another word that has as many units.
Several such names stand one behind the other, and the first that tells is taken. Where none does, and no axis
either, the word stays, with every axis that has it: how many heads there are is never guessed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..types import Shapes
from .notation import Axis, Fixed, Product, Sum, Word, length_of, parts_of, rewrite, words_of
from .patterns import pattern_of
from .spec import Spec

T = TypeVar("T")
Tensors = Mapping[str, tuple[Axis, ...]]

CONFIG = "config."  # what a size begins with that the configuration tells


@dataclass(frozen=True)
class Sizes:
    """Units of every word, of a starred one in each block.

    `given` are those that no axis told alone: stated, or looked up. `untold` are words without one, and the
    names that would have told it. `told` are the keys of the configuration that nothing else says.
    """

    units: dict[str, int]
    given: dict[str, int]
    untold: dict[str, tuple[str, ...]] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)


def sizes_of(
    spec: Spec, axes: Tensors, shapes: Shapes, settings: Mapping[str, Any], problems: list[str]
) -> Sizes:
    """The size of each word on these axes; `settings` are those of the model's configuration."""
    words = {word for its in axes.values() for axis in its for word in words_of(axis)}
    given = said("sizes", spec.sizes, words, problems)
    asked = said("sizes", spec.looked_up, words, problems, all_used=False)
    asked = {word: names for word, names in asked.items() if word not in given}
    problems += [
        f'sizes  "{word}" is as large as "{name}", which is no word of these tensors'
        for word, names in asked.items()
        for name in names
        if not name.startswith(CONFIG) and name not in words
    ]
    where = dict.fromkeys(given, "sizes ")
    looked_up: dict[str, tuple[str, int]] = {}
    for word, names in asked.items():
        found = ((name, setting(settings, name)) for name in names if name.startswith(CONFIG))
        if (told := next(((name, size) for name, size in found if size is not None), None)) is not None:
            looked_up[word] = where[word], given[word] = told
    while True:
        found_now: list[str] = []
        units = _word_sizes(axes, shapes, given, where, found_now)
        same = {
            word: (name, units[name])
            for word, names in asked.items()
            if word not in units and (name := next((n for n in names if n in units), None)) is not None
        }
        if not same:
            problems += found_now
            break
        given |= {word: size for word, (_, size) in same.items()}
        where |= {word: name for word, (name, _) in same.items()}
    without = sizes_of(spec, axes, shapes, {}, []).untold if looked_up else {}
    alone = dict(told for word, told in looked_up.items() if word in without)
    return Sizes(units, given, {word: names for word, names in asked.items() if word not in units}, alone)


def setting(settings: Mapping[str, Any], name: str) -> int | None:
    """The number above 0 that a configuration has under `config.text_config.num_attention_heads`.

    In a list it is one of its places, from 0: `config.num_heads.2`.
    """
    found: Any = settings
    for key in name.removeprefix(CONFIG).split("."):
        if isinstance(found, list):
            found = dict(zip(map(str, range(len(found))), found, strict=True))
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def held(axes: Tensors, shapes: Shapes, untold: Set[str]) -> dict[str, tuple[Axis, ...]]:
    """The same axes, where all that have one of these words stay, and other words of such axes, too."""
    waiting, kept = set(untold), set[str]()
    while waiting - kept:
        kept |= waiting
        waiting = {
            word
            for its in axes.values()
            for axis in its
            if kept.intersection(words_of(axis))
            for word in words_of(axis)
        }
    return {
        tensor: tuple(
            Fixed(size) if kept.intersection(words_of(axis)) else axis
            for axis, size in zip(its, shapes[tensor], strict=True)
        )
        for tensor, its in axes.items()
    }


def still(axes: Tensors, sizes: Mapping[str, int], stays: Set[str]) -> dict[str, tuple[Axis, ...]]:
    """The same axes with these words as so many units that stay."""

    def leaf(axis: Axis) -> Axis:
        return Fixed(sizes[axis.name]) if isinstance(axis, Word) and axis.name in stays else axis

    return {tensor: tuple(rewrite(axis, leaf) for axis in its) for tensor, its in axes.items()}


def said(
    section: str, told: Mapping[str, T], words: set[str], problems: list[str], *, all_used: bool = True
) -> dict[str, T]:
    """What a section says of each word, whose keys are words or families of words.

    A key that is no word is a problem where `all_used`.
    """
    given: dict[str, T] = {}
    by: dict[str, str] = {}
    for key in sorted(told, key=lambda key: "{" in key):
        members = (
            sorted(w for w in words if pattern_of(key).matches(w)) if "{" in key else [key] * (key in words)
        )
        if not members and all_used:
            problems.append(f'{section}  "{key}" is no word of these tensors')
        for word in members:
            if "{" in by.get(word, ""):
                problems.append(f'{section}  "{word}" is claimed by "{by[word]}" and "{key}"')
            elif word not in by:
                by[word], given[word] = key, told[key]
    return given


def _word_sizes(
    axes: Tensors,
    shapes: Shapes,
    given: Mapping[str, int],
    where: Mapping[str, str],
    problems: list[str],
) -> dict[str, int]:
    """One size a word: plain axes say it outright, composite axes once all but one part is known.

    `given` are those that are told, and `where` by what. Of a starred word it is the size of one block.
    """
    # word → size → where it was first said
    claims: dict[str, dict[int, str]] = {word: {size: where[word]} for word, size in given.items()}
    places = [(t, k, a, shapes[t][k]) for t, tensor_axes in axes.items() for k, a in enumerate(tensor_axes)]
    for tensor, k, axis, size in places:
        if isinstance(axis, Word):
            claims.setdefault(axis.name, {}).setdefault(size, f"{tensor}  axis {k}")
    words = {word: min(sizes) for word, sizes in claims.items()}
    open_places = [place for place in places if isinstance(place[2], (Product, Sum))]
    having: dict[str, list[int]] = {}  # of each word that is not known, where it stands
    for at, (_, _, axis, _) in enumerate(open_places):
        for word in {*words_of(axis)} - words.keys():
            having.setdefault(word, []).append(at)
    waiting = deque(range(len(open_places)))
    while waiting:
        tensor, k, axis, size = open_places[waiting.popleft()]
        unknown = {word for word in words_of(axis) if word not in words}
        if len(unknown) == 1 and (solved := _solve(axis, size, words)) is not None:
            word = unknown.pop()
            words[word] = solved
            claims.setdefault(word, {})[solved] = f"{tensor}  axis {k}"
            waiting.extend(having[word])
    for word, sizes in claims.items():
        if len(sizes) > 1:
            problems += [f'{place} is "{word}", {size} units' for size, place in sizes.items()]
            problems.append("  these should be equal")
    return words


def _solve(axis: Axis, size: int, words: Mapping[str, int]) -> int | None:
    """The size of the single unknown word in `axis`, given the axis's length; None where it has none."""
    if isinstance(axis, Word):
        return size if axis.name not in words else None
    parts = parts_of(axis)
    unknown = [part for part in parts if length_of(part, words) is None]
    if len(unknown) > 1 and isinstance(axis, Sum):
        return _solve_terms(axis, size, words)
    if len(unknown) != 1:
        return None
    known = [length for part in parts if (length := length_of(part, words)) is not None]
    if isinstance(axis, Product):
        if not (one := math.prod(known)):  # of units that are none
            return None
        left, remainder = divmod(size, one)
        return _solve(unknown[0], left, words) if remainder == 0 and left > 0 else None
    return _solve(unknown[0], size - sum(known), words) if size > sum(known) else None


def _solve_terms(axis: Sum, size: int, words: Mapping[str, int]) -> int | None:
    """The one unknown word of several terms, each of which has it once."""
    (unknown,) = {word for word in words_of(axis) if word not in words}
    one, two, three = (length_of(axis, {**words, unknown: n}) for n in (1, 2, 3))
    if one is None or two is None or three is None or three - two != two - one:
        return None
    each = two - one
    found, remainder = divmod(size - one + each, each)
    return found if remainder == 0 and found > 0 else None
