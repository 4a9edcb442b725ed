"""What each starred word lies within: `d*` in `(heads d*)` has an order of its own in each of `heads`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .notation import Axis, Fixed, Word, factors_of, leaves_of, starred_of
from .patterns import pattern_of
from .spec import Block, Spec

Tensors = Mapping[str, tuple[Axis, ...]]
Place = tuple[str, int, Word | Fixed | None]  # a tensor, its axis, and what the word lies within there


def find_blocks(
    spec: Spec, tensors: Tensors, sizes: Mapping[str, int], problems: list[str]
) -> dict[str, Block]:
    """The block of every starred word, once all tensors agree on it.

    `sizes` has the units of every word, of a starred one in each block.
    """
    places: dict[str, list[Place]] = {}
    for tensor, axes in tensors.items():
        for k, axis in enumerate(axes):
            for word, outer in starred_of(axis):
                places.setdefault(word, []).append((tensor, k, outer))
    if not places and not spec.within:
        return {}
    blocks, given, plain = {}, _given(spec, places.keys(), sizes, problems), _plain(tensors)
    for word, its in places.items():
        if word in given:  # a number before it is then one of copies: "(2 h*)"
            its = [(tensor, k, said if isinstance(said, Word) else None) for tensor, k, said in its]
        found = _not_starred(word, its[0], plain) or _disagreeing(word, its, given.get(word))
        outer = given.get(word) or next((outer for *_, outer in its if outer is not None), None)
        if outer is not None and not found:
            found = [text for place in its if (text := _missing(word, place, outer, tensors))]
        problems += found
        count = sizes.get(outer.name) if isinstance(outer, Word) else outer.size if outer else None
        if count and word in sizes:  # else a problem is told already
            blocks[word] = Block(getattr(outer, "name", None), count, sizes[word])
    return blocks


def _given(
    spec: Spec, starred: Collection[str], sizes: Mapping[str, int], problems: list[str]
) -> dict[str, Word]:
    """What the spec itself states under `within:`; an exact word beats families."""
    given: dict[str, Word] = {}
    for key in sorted(spec.within, key=lambda key: "{" in key):
        near = starred if "{" in key else [key] * (key in starred)
        members = {word: m for word in near if (m := pattern_of(key).match(word)) is not None}
        if not members:
            problems.append(f'within  "{key}" is no starred word of these tensors')
        for word, captured in members.items():
            outer = spec.within[key]
            for slot, value in captured.items():
                outer = outer.replace(f"{{{slot}}}", value)
            if outer not in sizes or outer in starred:
                problems.append(f'within  "{outer}", for "{word}", is no word without a star')
            else:
                given.setdefault(word, Word(outer))
    return given


def _plain(tensors: Tensors) -> dict[str, tuple[str, int]]:
    """The first place of every word without a star."""
    found: dict[str, tuple[str, int]] = {}
    for tensor, axes in tensors.items():
        for k, axis in enumerate(axes):
            for leaf in leaves_of(axis):
                if isinstance(leaf, Word) and not leaf.each:
                    found.setdefault(leaf.name, (tensor, k))
    return found


def _not_starred(word: str, place: Place, plain: Mapping[str, tuple[str, int]]) -> list[str]:
    if word not in plain:
        return []
    tensor, k = plain[word]
    return [f'{tensor}  axis {k} has "{word}" without a star, {place[0]} axis {place[1]} has "{word}*"']


def _disagreeing(word: str, places: list[Place], given: Word | None) -> list[str]:
    said: dict[Word | Fixed, tuple[str, int]] = {}
    for tensor, k, outer in places:
        if outer is not None:
            said.setdefault(outer, (tensor, k))
    if not said and given is None:
        tensor, k, _ = places[0]
        return [
            f'{tensor}  axis {k} has "{word}*", but no tensor says within what: "(heads {word}*)" would, '
            f"or `within:`"
        ]
    if given is not None:
        wrong = [(outer, place) for outer, place in said.items() if outer != given]
        return [f'{t}  axis {k} has "{word}*" within "{o}", `within:` says "{given}"' for o, (t, k) in wrong]
    if len(said) == 1:
        return []
    lines = [f'{tensor}  axis {k} has "{word}*" within "{outer}"' for outer, (tensor, k) in said.items()]
    return [*lines, "  these should be equal"]


def _missing(word: str, place: Place, outer: Word | Fixed, tensors: Tensors) -> str:
    """Where an axis does not say itself what the word lies within, exactly one other axis must have it."""
    tensor, k, said = place
    if said is not None:
        return ""
    if isinstance(outer, Fixed):
        return f'{tensor}  axis {k} has "{word}*" without the {outer} it lies within: "({outer} {word}*)"'
    others = [axis for j, axis in enumerate(tensors[tensor]) if j != k]
    count = sum(leaf == outer for axis in others for leaf in leaves_of(axis))
    if count == 1 and any(outer in factors_of(axis) for axis in others):
        return ""
    return (
        f'{tensor}  axis {k} has "{word}*", which lies within "{outer}": '
        f"one other axis must have that once, and outside sums"
    )
