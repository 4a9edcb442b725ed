"""What lies around the weights in a file of `torch.save`: the envelope that they are written back into.

Kept are plain values: text, numbers, None, and dictionaries, lists and tuples of them; of an object whose
class is not known, its attributes where all are plain. Left out is what would be false beside other weights
(an optimizer's state, copies of the model, what was measured of it), and what is no plain value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .inert import Inert
from .opening import attributes
from .saved import MAX_DEPTH, STATES, Path, dotted, records, text_of

MOST = 100_000  # values that an envelope may hold beside the tensors
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


def around(saved: Any, places: Mapping[str, Path], skipped: Mapping[str, str]) -> Around | None:
    """The envelope of the tensors that lie at `places`; None where it holds more than `MOST` other values.

    `skipped` says of what is no weights what it is, by dotted path.
    """
    walk = _Walk({path: name for name, path in places.items()}, skipped)
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
    def __init__(self, names: Mapping[Path, str], skipped: Mapping[str, str]):
        self.names, self.skipped, self.count = names, skipped, 0
        self.left_out: dict[str, None] = {}
        self.open: set[int] = set()  # what the value lies in: a pickle may hold itself

    def kept(self, value: Any, path: Path) -> Any:
        if path in self.names:
            return Slot(self.names[path])
        self.count += 1
        measured = len(path) == 1 and path[0] != "lr" and records(path[0]) and not isinstance(value, str)
        if measured or self.skipped.get(dotted(path)) in STATES:
            return self._left(path)
        if self.count > MOST or len(path) > MAX_DEPTH or id(value) in self.open:
            return self._left(path)
        if isinstance(value, PLAIN) and type(value) in PLAIN:
            return value
        if type(value) is Inert:
            value = attributes(value)
            if value is None or isinstance(made := self._entries(value, path, whole=True), str):
                return self._left(path)
            return made
        if isinstance(value, Mapping | list | tuple) and not isinstance(value, Tensor):
            made = self._entries(value, path, whole=False)
            return self._left(path) if isinstance(made, str) else made
        return self._left(path)

    def _left(self, path: Path) -> Any:
        self.left_out[dotted(path)] = None
        return _NOTHING

    def _entries(self, value: Any, path: Path, *, whole: bool) -> Any:
        """The same without what is left out; text where nothing of it would be right: what it lacks."""
        self.open.add(id(value))
        before = {**self.left_out}
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        made = {key: self.kept(inner, (*path, key)) for key, inner in items}
        self.open.discard(id(value))
        lacking = [key for key, inner in made.items() if inner is _NOTHING]
        odd = [key for key in made if text_of(key) is None]
        # In a list without weights others would stand in the place of what lacks; an object is whole.
        if lacking and (whole or not (_has_slots(made) or path == () or isinstance(value, Mapping))) or odd:
            self.left_out = before
            return "entries"
        if lacking and not any(inner is not _NOTHING for inner in made.values()):
            self.left_out = before
            return "all"
        if isinstance(value, Mapping):
            return {key: inner for key, inner in made.items() if inner is not _NOTHING}
        listed = [None if inner is _NOTHING else inner for inner in made.values()]
        return tuple(listed) if isinstance(value, tuple) else listed


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
