"""Why each unit may move or stays: what inference found for every axis, and what a given spec makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...groups import PERMUTATION, find
from ...runtime.text import some
from ...spec.notation import Axis, Fixed, Product, Sum, Word, fitted_length, words_of
from ...spec.spec import FittedSpec

if TYPE_CHECKING:
    from .spec_text import Inferred

_PLACE = re.compile(r"(?P<tensor>.+) axis (?P<axis>\d+)(?P<part> \(in part\))?")


def explain(found: Inferred) -> dict[str, Any]:
    """Words with their sizes and places, what stays by reason, and every tensor axis by axis."""
    fitted = found.fitted
    why = reasons(found)
    places: dict[str, list[str]] = {}  # the first is where the word is written
    tensors: dict[str, list[dict[str, Any]]] = {}
    for name, axes in fitted.stacked.tensors.items():
        for k, axis in enumerate(axes):
            for word in dict.fromkeys(words_of(axis)):
                places.setdefault(word, []).append(f"{name} axis {k}")
    for name, axes in fitted.tensors.items():
        tensors[name] = []
        for k, axis in enumerate(axes):
            size = fitted.shapes[name][k]
            tensors[name].append({"axis": str(axis), "size": size, "stays": why.get((name, k), [])})
    return {
        "words": {
            word: {"units": fitted.words[word], "told": fitted.units(word), "axes": where}
            | _group(found, word)
            for word, where in places.items()
        },
        "stays": [{"why": frozen.why, "axes": list(frozen.places)} for frozen in found.reasons],
        "missed": forgone(found),
        "tensors": tensors,
    } | ({"not_folded": found.folds.unfolded} if found.folds.left else {})


def _group(found: Inferred, word: str) -> dict[str, Any]:
    """A word's group, where groups were looked for, and why it is no larger."""
    kind = found.fitted.groups.get(word)
    if kind is None and word not in found.no_larger:
        return {}
    return {"group": kind or PERMUTATION, "no_larger": list(found.no_larger.get(word, ()))}


def forgone(found: Inferred) -> list[dict[str, Any]]:
    """What stays although it could move, with the digits that it costs: at most, where `bound`."""
    return [
        {"what": one.what, "axes": list(one.places), "log10": one.log10, "bound": one.bound, "told": one.told}
        for one in found.missed
    ]


def reasons(found: Inferred) -> dict[tuple[str, int], list[str]]:
    """(tensor, axis) → why it, or part of it, stays."""
    why: dict[tuple[str, int], list[str]] = {}
    for frozen in found.reasons:
        for place in frozen.places:
            if (at := _PLACE.fullmatch(place)) is not None:
                why.setdefault((at["tensor"], int(at["axis"])), []).append(frozen.why)
    return why


def compare(given: FittedSpec, found: Inferred) -> dict[str, Any]:
    """Where a spec has the freedom that inference finds, where less, where more: axis by axis.

    `same` counts axes. A word that inference has as several is `tied`, several that it has as one are
    `split`; the latter, and what `moves` although inference keeps it, are not necessarily wrong: values
    are not looked at, and the example inputs may not reach everything. `spec prove` tells.
    """
    own = found.fitted
    mine, theirs = _partners(given, own)
    why = reasons(found)
    same, keeps, moves, unlike = 0, [], [], []
    for name in own.stacks.keys() - given.stacks.keys():
        keeps.append({"axis": f"{name} axis 0", "word": own.stacks[name].word})
    for name, axes in own.tensors.items():
        for k, axis in enumerate(axes):
            said = given.tensors[name][k] if name in given.tensors else Fixed()
            place = f"{name} axis {k}"
            spec_words, words = set(words_of(said)), set(words_of(axis))
            if not spec_words and not words:
                same += 1
            elif not spec_words:
                keeps.append({"axis": place, "word": str(axis)})
            elif not words:
                stays = why.get((name, k), [])
                moves.append({"axis": place, "word": str(said), "why": stays})
            elif _alike(name, said, axis, given, own, mine, theirs):
                same += 1
            else:
                unlike.append({"axis": place, "spec": str(said), "inferred": str(axis)})
    return {
        "same": same,
        "keeps": keeps,
        "moves": moves,
        "tied": {word: sorted(others) for word, others in mine.items() if len(others) > 1},
        "split": {word: sorted(others) for word, others in theirs.items() if len(others) > 1},
        "unlike": unlike,
    }


def _partners(given: FittedSpec, own: FittedSpec) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Words that stand at the same positions and are as large: both ways."""
    mine: dict[str, set[str]] = {}
    theirs: dict[str, set[str]] = {}
    for name in own.tensors.keys() & given.tensors.keys():
        for said, axis in zip(given.tensors[name], own.tensors[name], strict=True):
            found = {(start, step, n): word for word, start, step, n in _runs(axis, own, name)}
            for word, start, step, n in _runs(said, given, name):
                if (other := found.get((start, step, n))) is not None:
                    mine.setdefault(word, set()).add(other)
                    theirs.setdefault(other, set()).add(word)
    return mine, theirs


def _runs(axis: Axis, fitted: FittedSpec, name: str) -> Iterator[tuple[str, int, int, int]]:
    """Every word of an axis: where it begins, how far apart its units are, how many they are.

    In a list, a word within its order is another one at each place.
    """
    sizes, (stack, at) = fitted.sizes, fitted.places.get(name, ("", 0))
    order = fitted.stacks[stack].word if stack else None

    def walk(part: Axis, start: int, inner: int) -> Iterator[tuple[str, int, int, int]]:
        if isinstance(part, Word):
            block = fitted.within.get(part.name)
            inside = order is not None and block is not None and block.word == order
            yield f"{part.name} at {at}" if inside else part.name, start, inner, sizes[part.name]
        elif isinstance(part, Product):
            for k, factor in enumerate(part.factors):
                below = inner
                for other in part.factors[k + 1 :]:
                    below *= fitted_length(other, sizes)
                yield from walk(factor, start, below)
        elif isinstance(part, Sum):
            for term in part.terms:
                yield from walk(term, start, inner)
                start += inner * fitted_length(term, sizes)

    yield from walk(axis, 0, 1)


def _alike(
    name: str,
    said: Axis,
    axis: Axis,
    given: FittedSpec,
    own: FittedSpec,
    mine: Mapping[str, set[str]],
    theirs: Mapping[str, set[str]],
) -> bool:
    """Whether both move the same units, by words that are each other's only partner."""
    renamed = set()
    for word, *where in _runs(said, given, name):
        others = mine.get(word, set())
        if len(others) != 1 or len(theirs[min(others)]) != 1:
            return False
        renamed.add((min(others), *where))
    return renamed == set(_runs(axis, own, name))


def lines(told: Mapping[str, Any], *, tensors: bool = False) -> Iterator[str]:
    """What `explain` found, for a person; with `tensors`, each of them too."""
    yield "moves:"
    for word, found in told["words"].items():
        yield f"  {word}  {found['told']}"
        yield f"    {some(found['axes'], 4)}"
        if "group" in found:
            yield f"    {found['group']}: {find(found['group']).told}"
            yield from (f"    no larger: {why}" for why in found["no_larger"])
    if not told["words"]:
        yield "  nothing"
    yield ""
    yield "stays:"
    for found in told["stays"]:
        yield f"  {found['why']}"
        yield f"    {some(found['axes'], 4)}"
    if not told["stays"]:
        yield "  nothing that has a choice"
    if told.get("not_folded"):
        yield ""
        yield "not folded in the canonical form:"
        yield from (f"  {what}: {why}" for what, why in told["not_folded"].items())
    if told["missed"]:
        yield ""
        yield "stays although it could move:"
    for found in told["missed"]:
        yield f"  {found['told']}"
        yield f"    {some(found['axes'], 4)}"
    if tensors:
        yield ""
        yield "tensors:"
        for name, axes in told["tensors"].items():
            yield f"  {name}{'' if axes else '  no axes'}"
            for k, axis in enumerate(axes):
                stays = f"  stays: {'; '.join(axis['stays'])}" if axis["stays"] else ""
                yield f"    axis {k}  {axis['size']:>6}  {axis['axis']}{stays}"


def comparison(told: Mapping[str, Any]) -> Iterator[str]:
    """What `compare` found, for a person."""
    yield f"{_axes(told['same'])} with the same freedom"
    sections = (
        ("keeps", "kept by the spec that could move", lambda at: f'could be "{at["word"]}"'),
        ("moves", "moved by the spec that inference keeps, which need not be wrong", _moved),
        ("unlike", "moved by both, but not alike", lambda at: f'"{at["spec"]}", inferred "{at["inferred"]}"'),
    )
    for key, title, line in sections:
        groups: dict[str, list[str]] = {}
        for at in told[key]:
            groups.setdefault(line(at), []).append(at["axis"])
        if groups:
            yield ""
            yield f"{_axes(len(told[key]))} {title}:"
        for said, axes in groups.items():
            yield f"  {said}"
            yield f"    {some(axes, 4)}"
    if told["tied"] or told["split"]:
        yield ""
    for word, others in told["tied"].items():
        yield f'"{word}" could be {len(others)} words: {", ".join(others)}'
    for word, others in told["split"].items():
        yield f'{", ".join(others)} are one word in what was inferred: "{word}"'


def _moved(at: Mapping[str, Any]) -> str:
    return f'"{at["word"]}"' + (f"; {'; '.join(at['why'])}" if at["why"] else "")


def _axes(count: int) -> str:
    return f"{count:,} {'axis' if count == 1 else 'axes'}"
