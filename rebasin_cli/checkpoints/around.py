"""What lies around the weights in a file of `torch.save`: the envelope that they are written back into.

Kept are plain values: text, numbers, None, and dictionaries, lists and tuples of them; of an object whose
class is not known, its attributes where all are plain. Left out is what would be false beside other weights
(an optimizer's state, copies of the model, what was measured of it), and what is no plain value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from .containers import attributes
from .inert import Inert
from .saved import MAX_DEPTH, STATES, Path, measured, settings, text_of

MOST = 30_000  # values that an envelope may hold beside the tensors: what has more is left out
TOO_LARGE = 4  # entries that are looked into and have more; all after these are left out
PLAIN = (str, int, float, bool, type(None))
VERSIONS = "_metadata"  # what PyTorch calls those of a state dict's layers


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
) -> Around:
    """The envelope of the tensors that lie at `places`.

    `skipped` says of what is no weights what it is, by dotted path; `others` are those of copies and other
    parts of the model, which are left out whole.
    """
    states = {called for called, what in skipped.items() if what in STATES}
    walk = _Walk({path: name for name, path in places.items()}, states.union(others))
    tree = walk.kept(saved, ())
    beside = tree if isinstance(tree, dict) else {}
    return Around(
        tree if tree is not _NOTHING else {},
        {text_of(key) or repr(key): value for key, value in beside.items() if not [*slots(value)]},
        tuple(walk.left_out),
    )


_NOTHING = object()


class _Walk:
    def __init__(self, names: Mapping[Path, str], without: Collection[str]):
        self.names, self.without, self.count, self.too_large = names, without, 0, 0
        self.ways = {path[:end] for path in names for end in range(len(path))}  # to the tensors
        self.left_out: list[str] = []
        self.given = 0  # in how many dictionaries of settings the value lies
        self.open: set[int] = set()  # what the value lies in: a pickle may hold itself

    def kept(self, value: Any, path: Path, called: str = "") -> Any:
        """The value as it is written back, `_NOTHING` where it is left out; `called` is its dotted path."""
        if path in self.names:
            return Slot(self.names[path])
        self.count += 1
        given = bool(path) and settings(path[-1])
        self.given += given
        made = self._kept(value, path, called)
        self.given -= given
        if made is _NOTHING:
            self.left_out.append(called)
        return made

    def _kept(self, value: Any, path: Path, called: str) -> Any:
        if path in self.ways or not self._is_false(value, path, called):
            if type(value) in PLAIN:
                return value
            whole = type(value) is Inert
            inner = attributes(value) if whole else value
            if isinstance(inner, Mapping | list | tuple):
                self.open.add(id(value))
                made = self._entries(inner, path, called, whole=whole)
                self.open.discard(id(value))
                return made
        return _NOTHING

    def _is_false(self, value: Any, path: Path, called: str) -> bool:
        """Whether this would be false beside other weights, or is too much."""
        if self.count > MOST or len(path) > MAX_DEPTH or id(value) in self.open:
            return True
        if called in self.without:
            return True
        return not self.given and bool(path) and measured(path[-1]) and not isinstance(value, str)

    def _entries(self, value: Any, path: Path, called: str, *, whole: bool) -> Any:
        """The same without what is left out, which is all where the rest would not be right by itself."""
        before, way = len(self.left_out), path in self.ways
        made = {}
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            name = text_of(key)
            if not way and (name is None or self.count > MOST):
                del self.left_out[before:]
                return _NOTHING
            if name is not None:
                dotted = f"{called}.{name}" if called else name
                made[key] = (self._bounded if way else self.kept)(inner, (*path, key), dotted)
        lacking = sum(inner is _NOTHING for inner in made.values())
        # In a list without weights others would stand in the place of what lacks; an object is whole.
        if not way and lacking and (whole or not isinstance(value, Mapping) or lacking == len(made)):
            del self.left_out[before:]
            return _NOTHING
        if isinstance(value, Mapping):
            return _like(value, {key: inner for key, inner in made.items() if inner is not _NOTHING})
        rest = [None if inner is _NOTHING else inner for inner in made.values()]
        return tuple(rest) if isinstance(value, tuple) else rest

    def _bounded(self, value: Any, path: Path, called: str) -> Any:
        """`kept` for what lies beside the way to the weights: all of it or, where it is too much, none."""
        if path in self.ways or path in self.names:
            return self.kept(value, path, called)
        count, before = self.count, len(self.left_out)
        made = self.kept(value, path, called) if self.too_large < TOO_LARGE else _NOTHING
        if self.count > MOST or self.too_large >= TOO_LARGE:
            self.too_large += self.count > count + 1
            self.count, self.left_out[before:] = count, [called]
            return _NOTHING
        return made


def _like(value: Mapping[Any, Any], made: dict[Any, Any]) -> dict[Any, Any]:
    """With the versions of layers that a state dict carries: some layers refuse to load without."""
    versions = getattr(value, VERSIONS, None)
    if not isinstance(versions, dict) or len(versions) > MOST:
        return made
    whole: Any = OrderedDict(made)
    setattr(whole, VERSIONS, OrderedDict(its for its in versions.items() if _is_version(*its)))
    return cast(dict[Any, Any], whole)


def _is_version(prefix: Any, its: Any) -> bool:
    return (
        type(prefix) is str
        and type(its) is dict
        and its.keys() == {"version"}
        and type(its["version"]) is int
    )


def fitted(tree: Any, names: Collection[str], renamed: Mapping[str, str]) -> tuple[Any, tuple[str, ...]]:
    """An envelope with a place for each of these tensors and for no other, under their names now.

    `renamed` are the names that tensors have now by those in the tree. A tensor that is new gets its place
    beside one of the same layer, else where its name leads among those there; second are the names of those
    that it leads nowhere.
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
            found = {key: made for key, inner in value.items() if (made := fit(inner)) is not _NOTHING}
            return _like(value, found)
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
    places: dict[str, list[tuple[str, dict[str, Any]]]] = {}  # by what is taken off a name there
    for off, before, holder in filter(None, map(_names_of, _mappings(made))) if new else ():
        places.setdefault(off, []).append((before, holder))
    homeless = []
    lengths = sorted({len(off) for off in places}, reverse=True)
    for name in (name for names in new.values() for name in names):
        its = next((name[:length] for length in lengths if name[:length] in places), None)
        before, holder = places[its][0] if its is not None else ("", {})
        key = before + name[len(its or "") :]
        if its is None or len(places[its]) != 1 or key in holder:
            homeless.append(name)
        else:
            holder[key] = Slot(name)
    return made, tuple(homeless)


def _names_of(holder: dict[str, Any]) -> tuple[str, str, dict[str, Any]] | None:
    """What is taken off a tensor's name and what is put before it here, where that is one for all."""
    found = set()
    for key, value in holder.items():
        if isinstance(value, Slot):
            if not isinstance(key, str) or not (key.endswith(value.name) or value.name.endswith(key)):
                return None
            off = value.name[: max(0, len(value.name) - len(key))]
            found.add((off, key[: max(0, len(key) - len(value.name))]))
    return (*found.pop(), holder) if len(found) == 1 else None


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _mappings(inner)


def slots(tree: Any) -> Iterator[str]:
    """The names for which an envelope has places."""
    if isinstance(tree, Slot):
        yield tree.name
    inner = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    for value in inner:
        yield from slots(value)
