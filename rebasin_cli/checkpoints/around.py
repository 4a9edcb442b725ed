"""What lies around the weights in a file of `torch.save`: the envelope that they are written back into.

Kept are plain values: text, numbers, None, and dictionaries, lists and tuples of them; of an object whose
class is not known, its attributes where all are plain. Left out is what would be false beside other weights
(an optimizer's state, copies of the model, what was measured of it), and what is no plain value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .inert import Inert
from .opening import attributes
from .saved import MAX_DEPTH, STATES, Path, records, text_of

MOST = 30_000  # values that an envelope may hold beside the tensors
PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Slot:
    """A place in an envelope for the tensor of this name."""

    name: str


@dataclass(frozen=True)
class Around:
    """`tree` is the saved object with a `Slot` for each of the model's tensors.

    `beside` are the plain values at its top, `left_out` the dotted paths of what is not in it.
    """

    tree: Any
    beside: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def around(
    saved: Any, places: Mapping[str, Path], skipped: Mapping[str, str], others: Collection[str] = ()
) -> Around | None:
    """The envelope of the tensors that lie at `places`; None where it holds more than `MOST` other values.

    `skipped` says of what is no weights what it is, by dotted path; `others` are those of copies and other
    parts of the model, which are left out whole.
    """
    states = {called for called, what in skipped.items() if what in STATES}
    walk = _Walk({path: name for name, path in places.items()}, states.union(others))
    tree = walk.kept(saved, ())
    if walk.count > MOST:
        return None
    beside = tree if isinstance(tree, dict) else {}
    return Around(
        tree if tree is not _NOTHING else {},
        {text_of(key) or repr(key): value for key, value in beside.items() if not _has_slots(value)},
        tuple(walk.left_out),
    )


_NOTHING = object()


class _Walk:
    def __init__(self, names: Mapping[Path, str], without: Collection[str]):
        self.names, self.without, self.count = names, without, 0
        self.left_out: list[str] = []
        self.open: set[int] = set()  # what the value lies in: a pickle may hold itself

    def kept(self, value: Any, path: Path, called: str = "") -> Any:
        """The value as it is written back, `_NOTHING` where it is left out; `called` is its dotted path."""
        if path in self.names:
            return Slot(self.names[path])
        self.count += 1
        measured = len(path) == 1 and called != "lr" and records(path[0]) and not isinstance(value, str)
        plain = type(value) in PLAIN
        deep = self.count > MOST or len(path) > MAX_DEPTH or id(value) in self.open
        if not plain and not measured and not deep and called not in self.without:
            whole = type(value) is Inert
            inner = attributes(value) if whole else value
            if isinstance(inner, Mapping | list | tuple):
                self.open.add(id(value))
                made = self._entries(inner, path, called, whole=whole)
                self.open.discard(id(value))
                if made is not _NOTHING:
                    return made
        elif plain and not measured and not deep:
            return value
        self.left_out.append(called)
        return _NOTHING

    def _entries(self, value: Any, path: Path, called: str, *, whole: bool) -> Any:
        """The same without what is left out, which is all where the rest would not be right by itself."""
        before = len(self.left_out)
        made = {}
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            name = text_of(key)
            if name is None:
                del self.left_out[before:]
                return _NOTHING
            made[key] = self.kept(inner, (*path, key), f"{called}.{name}" if called else name)
        lacking = sum(inner is _NOTHING for inner in made.values())
        # In a list without weights others would stand in the place of what lacks; an object is whole.
        listed = not isinstance(value, Mapping) and path != () and not _has_slots(made)
        if lacking and (whole or listed or lacking == len(made)):
            del self.left_out[before:]
            return _NOTHING
        if isinstance(value, Mapping):
            return {key: inner for key, inner in made.items() if inner is not _NOTHING}
        rest = [None if inner is _NOTHING else inner for inner in made.values()]
        return tuple(rest) if isinstance(value, tuple) else rest


def fitted(tree: Any, names: Collection[str], renamed: Mapping[str, str]) -> Any:
    """An envelope with a place for each of these tensors and for no other, under their names now.

    `renamed` are the names that tensors have now by those in the tree. A tensor that is new gets its place
    beside one of the same layer; None where there is none.
    """
    wanted, placed = {*names}, set()

    def fit(value: Any) -> Any:
        if isinstance(value, Slot):
            name = renamed.get(value.name, value.name)
            if name not in wanted or name in placed:
                return _NOTHING
            placed.add(name)
            return Slot(name)
        if isinstance(value, Mapping):
            return {key: made for key, inner in value.items() if (made := fit(inner)) is not _NOTHING}
        if isinstance(value, list | tuple):
            made = [fit(inner) for inner in value]
            return type(value)(None if inner is _NOTHING else inner for inner in made)
        return value

    made = fit(tree)
    new: dict[str, list[str]] = {}
    for name in names:
        if name not in placed:
            new.setdefault(_layer(name), []).append(name)
    for holder in _mappings(made) if new else ():
        for key, value in list(holder.items()):
            if isinstance(value, Slot) and isinstance(key, str):
                for name in new.pop(_layer(value.name), ()):
                    holder[f"{key[: key.rfind('.') + 1]}{name.rpartition('.')[2]}"] = Slot(name)
    return None if new else made


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _mappings(value: Any) -> Iterator[dict]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _mappings(inner)


def _has_slots(value: Any) -> bool:
    if isinstance(value, Slot):
        return True
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(map(_has_slots, inner))
