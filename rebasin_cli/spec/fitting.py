"""*Fit*: does a spec cover these tensors, with one size a word? Every tensor gets resolved axes."""

from __future__ import annotations

import fnmatch
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from ..errors import SpecError
from ..types import Shapes
from .groups import MATRICES, PERMUTATION, PLANES
from .lists import gathered, shapes_of, stacks_of
from .naming import fill, pattern_of, slots_of, stem_of
from .notation import Axis, Fixed, Product, Rest, Sum, Word, length_of, parts_of, rewrite, words_of
from .spec import Block, Entry, FittedSpec, Spec
from .within import find_blocks

T = TypeVar("T")
_WILD = re.compile(r"[*?\[]")  # what makes a name a glob


def fit(spec: Spec, shapes: Shapes) -> FittedSpec:
    """Resolve a spec against tensors: which line speaks of which tensor, and one size a word.

    `shapes` maps tensor names to shapes. Raises SpecError that lists every unlisted or absent tensor,
    every wrong rank, every word with two sizes, every starred word that lies within nothing or two
    things, and every list whose members are not alike.
    """
    problems: list[str] = []
    whole = {glob for glob in spec.ignore if not _WILD.search(glob)}
    globs = [glob for glob in spec.ignore if glob not in whole]
    ignored = frozenset(
        n for n in shapes if n in whole or any(fnmatch.fnmatchcase(n, glob) for glob in globs)
    )
    every = shapes
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
    given = _given_sizes(
        spec, {word for a in axes.values() for axis in a for word in words_of(axis)}, problems
    )
    sizes = _word_sizes(axes, shapes, given, problems)
    resolved = {t: _resolve_axes(t, a, shapes[t], sizes, given, problems) for t, a in axes.items()}
    within = find_blocks(spec, resolved, sizes, problems)
    groups = _groups(spec, resolved, within, sizes, problems, {its.word for its in stacks.values()})
    if problems:
        unknown = {word for a in axes.values() for axis in a for word in words_of(axis)} - sizes.keys()
        hint = "Sizes that no axis tells stand under `sizes:`" if unknown else ""
        raise SpecError(f"{spec.source} does not fit", problems=problems, hint=hint)
    fitted = FittedSpec(
        spec=spec,
        words={w: size * within[w].count if w in within else size for w, size in sizes.items()},
        tensors=resolved,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        statistics=frozenset(t for t, (entry, _) in chosen.items() if entry.statistic),
        ignored=ignored,
        within=within,
        groups=groups,
    )
    return fitted.opened(stacks, every) if stacks else fitted


def _choose(spec: Spec, shapes: Shapes, problems: list[str]) -> dict[str, tuple[Entry, Mapping[str, str]]]:
    """The line that speaks of each tensor: an exact line beats families, two families are a problem."""
    exact: dict[str, list[Entry]] = {}
    for entry in spec.entries:
        if not entry.family:
            exact.setdefault(entry.name, []).append(entry)
    families = _Families([entry for entry in spec.entries if entry.family])
    chosen: dict[str, tuple[Entry, Mapping[str, str]]] = {}
    for tensor, shape in shapes.items():
        matches = [(e, m) for e in exact.get(tensor, ()) if (m := e.match(tensor, shape)) is not None]
        matches = matches or families.matches(tensor, shape)
        if not matches:
            problems.append(f"{tensor}  {_show(shape)} is in the checkpoint, not in the spec")
        elif len(matches) > 1:
            lines = " and ".join(f'"{entry.name}"' for entry, _ in matches)
            problems.append(f"{tensor}  is claimed by {lines}")
        else:
            chosen[tensor] = matches[0]
    used = {id(entry) for entry, _ in chosen.values()}
    spoken = families.spoken_for({t: s for t, s in shapes.items() if t in exact or t not in chosen})
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

    return rewrite(axis, filled)


def _expand_rest(axes: tuple[Axis, ...], rank: int) -> tuple[Axis, ...] | None:
    """`...` replaced by as many fixed axes as are missing; None where the ranks cannot agree."""
    at = next((k for k, axis in enumerate(axes) if isinstance(axis, Rest)), None)
    if at is None:
        return axes if rank == len(axes) else None
    missing = rank - (len(axes) - 1)
    return (*axes[:at], *[Fixed()] * missing, *axes[at + 1 :]) if missing >= 0 else None


def _given_sizes(spec: Spec, words: set[str], problems: list[str]) -> dict[str, int]:
    """The sizes that the spec itself states; an exact word beats families, as in tensors' names."""
    return _said("sizes", spec.sizes, words, problems)


def _said(section: str, said: Mapping[str, T], words: set[str], problems: list[str]) -> dict[str, T]:
    """What a section says of each word, whose keys are words or families of words."""
    given: dict[str, T] = {}
    by: dict[str, str] = {}
    for key in sorted(said, key=lambda key: "{" in key):
        members = (
            sorted(w for w in words if pattern_of(key).matches(w)) if "{" in key else [key] * (key in words)
        )
        if not members:
            problems.append(f'{section}  "{key}" is no word of these tensors')
        for word in members:
            if "{" in by.get(word, ""):
                problems.append(f'{section}  "{word}" is claimed by "{by[word]}" and "{key}"')
            elif word not in by:
                by[word], given[word] = key, said[key]
    return given


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
    found = _said("groups", spec.groups, words, problems)
    outer = {block.word for block in within.values()}
    for word, kind in found.items():
        if kind == PERMUTATION:
            continue
        if kind in PLANES and sizes.get(word, 0) % 2:
            problems.append(f'groups  "{word}" is {kind}, and {sizes[word]} units are no pairs')
        if word in lists:
            problems.append(
                f'groups  "{word}" is {kind}, but it is the order of a list: it can only be ordered'
            )
        elif word in outer:
            problems.append(
                f'groups  "{word}" is {kind}, but other words lie within it: it can only be ordered'
            )
        elif word in within and kind not in MATRICES:
            problems.append(f'groups  "{word}" is {kind}; a starred word is one of: {", ".join(MATRICES)}')
    return {word: kind for word, kind in found.items() if kind != PERMUTATION}


def _word_sizes(
    axes: Mapping[str, tuple[Axis, ...]], shapes: Shapes, given: Mapping[str, int], problems: list[str]
) -> dict[str, int]:
    """One size a word: plain axes say it outright, composite axes once all but one part is known.

    `given` are the spec's own. Of a starred word it is the size of one block.
    """
    # word → size → where it was first said
    claims: dict[str, dict[int, str]] = {word: {size: "sizes "} for word, size in given.items()}
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
            problems += [f'{where} is "{word}", {size} units' for size, where in sizes.items()]
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
        left, remainder = divmod(size, math.prod(known))
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
        left = size / math.prod(known) if isinstance(axis, Product) else size - sum(known)
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
