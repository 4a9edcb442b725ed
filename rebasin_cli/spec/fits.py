"""*Fit*: does a spec cover these tensors, with one size a word? Every tensor gets resolved axes."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from operator import itemgetter
from typing import Any

from ..errors import SpecError
from ..groups import PERMUTATION, find, names
from ..types import Shapes
from .lists import gathered, shapes_of, stacks_of
from .notation import Axis, Fixed, Product, Rest, Sum, Word, length_of, parts_of, rewrite, words_of
from .patterns import fill, pattern_of, slots_of, stem_of
from .sizes import held, said, sizes_of, still
from .spec import Block, Entry, FittedSpec, Spec
from .within import find_blocks

_WILD = re.compile(r"[*?\[]")  # what makes a name a glob


def fit(spec: Spec, shapes: Shapes, settings: Mapping[str, Any] | None = None) -> FittedSpec:
    """Resolve a spec against tensors: which line speaks of which tensor, and one size a word.

    `shapes` maps tensor names to shapes, `settings` are the configuration beside the weights, for sizes that
    no axis tells. Raises SpecError that lists every unlisted or absent tensor,
    every wrong rank, every word with two sizes, every starred word that lies within nothing or two
    things, and every list whose members are not alike.
    """
    problems: list[str] = []
    every, ignored = shapes, _ignored(spec, shapes)
    said = _choose(spec, {n: s for n, s in shapes.items() if n not in ignored}, problems)
    chosen, lists = gathered(said)
    shapes = shapes_of(lists, shapes, problems)
    found = _found_values(chosen)
    axes: dict[str, tuple[Axis, ...]] = {}
    for tensor, (entry, captured) in chosen.items():
        try:
            slots = entry.slots
            filled = tuple(_filled(axis, captured, found) for axis in entry.axes) if slots else entry.axes
        except SpecError as error:
            problems.append(f"{tensor}  {error.message}")
            continue
        if (expanded := _expand_rest(filled, len(shapes[tensor]))) is None:
            text = " ".join(map(str, entry.axes))
            problems.append(
                f'{tensor}  has {len(shapes[tensor])} axes {_show(shapes[tensor])}, the spec says "{text}"'
            )
        else:
            axes[tensor] = expanded
    stacks = stacks_of(lists, axes, shapes, problems)
    found_sizes = sizes_of(spec, axes, shapes, settings or {}, problems)
    sizes, given, untold = found_sizes.units, found_sizes.given, found_sizes.untold
    problems += _no_words(spec, {*sizes, *untold})
    problems += [
        f"{one} and {other} have {sizes[one]} units each: something may be added around what is between them"
        for one, _, other in (pair.partition(" ") for pair in spec.unlike)
        if one in sizes and sizes[one] == sizes.get(other)
    ]
    axes = held(axes, shapes, untold.keys())
    resolved = {t: _resolve_axes(t, a, shapes[t], sizes, given, problems) for t, a in axes.items()}
    stays = {word for key in spec.stays for word in sizes if pattern_of(key).matches(word)}
    resolved = still(resolved, sizes, stays)
    left = {word for a in resolved.values() for axis in a for word in words_of(axis)}
    sizes = {word: size for word, size in sizes.items() if word in left}
    within = find_blocks(spec, resolved, sizes, problems)
    groups = _groups(spec, resolved, within, sizes, problems, {its.word for its in stacks.values()})
    if problems:
        unknown = {word for a in axes.values() for axis in a for word in words_of(axis)} - sizes.keys()
        hint = "Sizes that no axis tells stand under `sizes:`" if unknown else ""
        raise SpecError(f"{spec.source} does not fit", problems=problems, hint=hint)
    fitted = FittedSpec(
        # what was looked up is stated from here on: it is fitted again without the configuration
        spec=replace(spec, sizes={**spec.sizes, **given}) if given != spec.sizes and spec.looked_up else spec,
        words={w: size * within[w].count if w in within else size for w, size in sizes.items()},
        tensors=resolved,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        statistics=frozenset(t for t, (entry, _) in chosen.items() if entry.statistic),
        ignored=ignored,
        within=within,
        groups=groups,
        untold=tuple(dict.fromkeys(name for names in untold.values() for name in names)),
        told=found_sizes.told,
    )
    return fitted.opened(stacks, every) if stacks else fitted


def speaks_of_all(spec: Spec, shapes: Shapes) -> bool:
    """Whether every tensor has a line or is ignored; where one has not, that is seen at once."""
    lines, ignored = _Lines(spec), _ignored(spec, shapes)
    return all(name in ignored or lines.matches(name, shape) for name, shape in shapes.items())


def _ignored(spec: Spec, shapes: Shapes) -> frozenset[str]:
    whole = {glob for glob in spec.ignore if not _WILD.search(glob)}
    globs = [glob for glob in spec.ignore if glob not in whole]
    return frozenset(n for n in shapes if n in whole or any(fnmatch.fnmatchcase(n, glob) for glob in globs))


def _no_words(spec: Spec, words: Set[str]) -> list[str]:
    """What `stays` and `unlike` name that is a word neither of these tensors nor of any line."""
    lines = {word for entry in spec.entries for axis in entry.axes for word in words_of(axis)}
    named = [("stays", key) for key in spec.stays]
    named += [("unlike", word) for pair in spec.unlike for word in pair.split(" ")]
    return [
        f'{section}  "{name}" is no word of this spec'
        for section, name in named
        if name not in lines and not any(pattern_of(name).matches(word) for word in words)
    ]


def _choose(spec: Spec, shapes: Shapes, problems: list[str]) -> dict[str, tuple[Entry, Mapping[str, str]]]:
    """The line that speaks of each tensor: the one that leaves least open, and two alike are a problem."""
    known = _Lines(spec)
    chosen: dict[str, tuple[Entry, Mapping[str, str]]] = {}
    for tensor, shape in shapes.items():
        matches = known.matches(tensor, shape)
        if not matches:
            problems.append(f"{tensor}  {_show(shape)} is in the checkpoint, not in the spec")
        elif len(matches) > 1:
            lines = " and ".join(f'"{entry.name}"' for entry, _ in matches)
            problems.append(f"{tensor}  is claimed by {lines}")
        else:
            chosen[tensor] = matches[0]
    used = {id(entry) for entry, _ in chosen.values()}
    alone = {t: s for t, s in shapes.items() if t in known.exact or t not in chosen}
    spoken = known.families.spoken_for(alone)
    for entry in spec.entries:
        if not entry.optional and id(entry) not in used:
            if entry.family:
                # a family whose members all have exact lines of their own is still spoken for
                if id(entry) in spoken:
                    continue
                problems.append(f"{entry.name}  matches no tensor of the checkpoint")
            else:
                problems.append(f"{entry.name}  is in the spec, not in the checkpoint")
    return chosen


Match = tuple[Entry, Mapping[str, str]]


def _closest(matches: list[Match]) -> list[Match]:
    """Those whose names leave least open."""
    least = min((entry.open for entry, _ in matches), default=(0, 0))
    return [match for match in matches if match[0].open == least]


class _Lines:
    """The lines of a spec, by how they name tensors: `exact` ones come before families."""

    def __init__(self, spec: Spec):
        self.exact: dict[str, list[Entry]] = {}
        for entry in spec.entries:
            if not entry.family:
                self.exact.setdefault(entry.name, []).append(entry)
        self.families = _Families([entry for entry in spec.entries if entry.family])

    def matches(self, tensor: str, shape: tuple[int, ...]) -> list[Match]:
        """The lines that leave least open among those that speak of a tensor; several alike are a problem."""
        found = [(e, m) for e in self.exact.get(tensor, ()) if (m := e.match(tensor, shape)) is not None]
        return found or _closest(self.families.matches(tensor, shape))


class _Families:
    """Lines that stand for several tensors, by the text before their first slot: few of many can match."""

    def __init__(self, entries: Sequence[Entry]):
        self._by: dict[str, list[tuple[int, Entry]]] = {}
        for place, entry in enumerate(entries):
            self._by.setdefault(entry.name.partition("{")[0], []).append((place, entry))
        self._lengths = sorted({len(before) for before in self._by})

    def matches(self, tensor: str, shape: tuple[int, ...]) -> list[tuple[Entry, Mapping[str, str]]]:
        """The lines that speak of a tensor, in their order, and what stands in their slots."""
        near = [one for n in self._lengths if n <= len(tensor) for one in self._by.get(tensor[:n], ())]
        found = [
            (entry, m)
            for _, entry in sorted(near, key=itemgetter(0))
            if (m := entry.match(tensor, shape)) is not None
        ]
        return found

    def spoken_for(self, shapes: Shapes) -> set[int]:
        """Those that would speak of one of these tensors, had these no lines of their own."""
        return {id(entry) for tensor, shape in shapes.items() for entry, _ in self.matches(tensor, shape)}


def _found_values(chosen: Mapping[str, tuple[Entry, Mapping[str, str]]]) -> dict[str, set[tuple[str, ...]]]:
    """For every stem, the values that plain uses of it (`h{i}`, no offset) are bound to."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for entry, captured in chosen.values():
        for word in entry.slots:
            slots = slots_of(word)
            if slots and all(slot.name in captured and not slot.offset for slot in slots):
                found.setdefault(stem_of(word), set()).add(tuple(captured[slot.name] for slot in slots))
    return found


def _filled(axis: Axis, captured: Mapping[str, str], found: dict[str, set[tuple[str, ...]]]) -> Axis:
    def filled(leaf: Axis) -> Axis:
        if not isinstance(leaf, Word):
            return leaf
        return fill(leaf.name, captured, found, each=leaf.each, side=leaf.side)

    if (whole := rewrite(axis, filled)) == Sum(()):
        raise SpecError(f'"{axis}": no such values were found, so no segment is left')
    return whole


def _expand_rest(axes: tuple[Axis, ...], rank: int) -> tuple[Axis, ...] | None:
    """`...` replaced by as many fixed axes as are missing; None where the ranks cannot agree."""
    at = next((k for k, axis in enumerate(axes) if isinstance(axis, Rest)), None)
    if at is None:
        return axes if rank == len(axes) else None
    missing = rank - (len(axes) - 1)
    return (*axes[:at], *[Fixed()] * missing, *axes[at + 1 :]) if missing >= 0 else None


def _groups(
    spec: Spec,
    tensors: Mapping[str, tuple[Axis, ...]],
    within: Mapping[str, Block],
    sizes: Mapping[str, int],
    problems: list[str],
    lists: set[str],
) -> dict[str, str]:
    """The groups of words that have more than permutations."""
    words = {word for axes in tensors.values() for axis in axes for word in words_of(axis)}
    found = said("groups", spec.groups, words, problems)
    outer = {block.word for block in within.values()}
    for word, kind in found.items():
        if kind == PERMUTATION:
            continue
        if why := find(kind).unfit(sizes.get(word, 0)):
            problems.append(f'groups  "{word}" is {kind}, and {why}')
        if word in lists:
            problems.append(
                f'groups  "{word}" is {kind}, but it is the order of a list: it can only be ordered'
            )
        elif word in outer:
            problems.append(
                f'groups  "{word}" is {kind}, but other words lie within it: it can only be ordered'
            )
        elif word in within and not find(kind).matrix:
            matrices = ", ".join(name for name in names() if find(name).matrix)
            problems.append(f'groups  "{word}" is {kind}; a starred word is one of: {matrices}')
    return {word: kind for word, kind in found.items() if kind != PERMUTATION}


def _resolve_axes(
    tensor: str,
    axes: tuple[Axis, ...],
    shape: tuple[int, ...],
    words: Mapping[str, int],
    given: Mapping[str, int],
    problems: list[str],
) -> tuple[Axis, ...]:
    resolved: list[Axis] = []
    for k, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        exact = _resolve(axis, size, words)
        if exact is None and not isinstance(axis, Word):
            known = ", ".join(
                f"{word} = {words.get(word, '?')}{' by `sizes`' * (word in given)}" for word in words_of(axis)
            )
            problems.append(
                f'{tensor}  axis {k} has {size} entries, the spec says "{axis}"'
                + (f" ({known})" if known else "")
            )
        resolved.append(exact if exact is not None else axis)
    return tuple(resolved)


def _resolve(axis: Axis, size: int, words: Mapping[str, int]) -> Axis | None:
    """The axis with every fixed part's size filled in; None where it cannot be `size` long."""
    if isinstance(axis, Word):
        return axis if words.get(axis.name) == size else None
    if isinstance(axis, Fixed):
        return Fixed(size) if axis.size in (None, size) else None
    if isinstance(axis, Rest):
        return None  # it was expanded before
    parts = parts_of(axis)
    lengths = [length_of(part, words) for part in parts]
    known = [length for length in lengths if length is not None]
    if len(known) == len(lengths) - 1:
        if not (one := math.prod(known)) and isinstance(axis, Product):  # of units that are none
            return None
        left = size / one if isinstance(axis, Product) else size - sum(known)
        if left != int(left) or left < 1:
            return None
        known.insert(lengths.index(None), int(left))
    total = math.prod(known) if isinstance(axis, Product) else sum(known)
    if len(known) < len(lengths) or total != size:
        return None
    found = (_resolve(part, length, words) for part, length in zip(parts, known, strict=True))
    exact = tuple(part for part in found if part is not None)
    return type(axis)(exact) if len(exact) == len(parts) else None


def _show(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"
