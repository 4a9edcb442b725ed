"""What lies in objects whose classes are not known: state dicts of whole networks, and what is left unread.

An `Inert` remembers what a pickle gave to it. A network's is a dictionary with `_parameters`, `_buffers` and
`_modules`, from which its state dict follows without its class; any other object that holds tensors somewhere
is a dictionary of its attributes and items, but for tensors that are attributes themselves: what these are,
its class alone knows. All that remains is named, not read.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from .inert import Global, Inert, Reader, TooMuch, kind
from .pickled import TENSOR, Storage, array, of_storage

MAX_DEPTH = 200  # of modules in modules
MAX_PATH = 20  # of dictionaries in dictionaries: what lies deeper is told by its first names
MAX_UNREAD = 10_000
SHOWN = 60  # characters of a name

_PARTS = ("_parameters", "_buffers", "_modules")
_ATOMS = (str, int, float, bool, bytes, type(None))
_CONTAINERS = (dict, OrderedDict, list, tuple, set, frozenset, Inert)


@dataclass(frozen=True)
class Unread:
    """One thing that was not read: where it lies, what it is called, and whether tensors are in it.

    `whole`: the object was read, but for what its class would add.
    """

    path: tuple[str, ...]
    kind: str
    tensors: bool = False
    whole: bool = False

    def __str__(self) -> str:
        where = ".".join(_short(part) for part in self.path)
        if self.whole:
            return (
                f"all of {f'{where} ({_short(self.kind)})' if where else _short(self.kind)} but its tensors"
            )
        return f"{where} ({_short(self.kind)}{', with tensors' if self.tensors else ''})"


class UnreadTensor(Tensor):
    """Stands for a tensor that is not read: it has no values, and `what` says why; see `Inert.tensor`."""

    what = ""
    needs_code = False


def looked_into(saved: Any, reader: Reader) -> tuple[Any, tuple[Unread, ...]]:
    """The same with networks as their state dicts and holders of tensors as dictionaries; and what is unread.

    Dictionaries and lists within are changed in place; tuples of such objects become lists.
    """
    if reader.plain:
        return saved, ()
    held = holding(saved)
    made: dict[int, tuple[Any, Any]] = {}  # with the object itself, so that its id stays its own

    def open_one(value: Any) -> Any:
        if id(value) in made:
            return made[id(value)][1]
        if type(value) is Inert:
            new = _opened(value, held, reader)
        elif type(value) is tuple and any(type(part) is Inert for part in value):
            new = list(value)
        else:
            return value
        made[id(value)] = value, new
        return new

    root, unread, seen = open_one(saved), [], set()
    if type(saved) is Inert and root is not saved:
        unread.append(Unread((), saved.kind, whole=True))
    elif type(saved) is Inert:
        unread.append(Unread((), saved.kind, id(saved) in held))
    todo: list[tuple[tuple[str, ...], Any]] = [((), root)]
    for path, value in _growing(todo):
        if id(value) in seen:
            continue
        seen.add(id(value))
        for key, inner in _entries(value):
            if type(inner) in _ATOMS and type(key) in _ATOMS:
                continue
            new = open_one(inner)
            if new is not inner and isinstance(value, dict | list):
                value[key] = new
            named = isinstance(value, dict) and len(path) < MAX_PATH
            where = (*path, _name(key)) if named else path
            if isinstance(new, dict | list | tuple):
                todo.append((where, new))
            if len(unread) >= MAX_UNREAD:
                continue
            if type(key) in (Inert, Global):
                unread.append(Unread(where, "a key"))
            if type(new) is Inert or (type(new) is Global and type(key) is not Global):
                unread.append(Unread(where, new.kind, id(new) in held))
            elif type(inner) is Inert and isinstance(new, dict):
                unread.append(Unread(where, inner.kind, whole=True))
    return root, tuple(dict.fromkeys(unread))


def _growing(todo: list[Any]) -> Iterator[Any]:
    """Its items in their order, also those that are appended meanwhile; each is forgotten."""
    at = 0
    while at < len(todo):
        item, todo[at] = todo[at], None
        yield item
        at += 1


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def holding(saved: Any) -> set[int]:
    """The ids of all containers from which a tensor, or a module, can be reached."""
    parents: dict[int, list[int]] = {}
    having: list[int] = []
    todo, seen = [saved], {id(saved)}
    while todo:
        value = todo.pop()
        for inner in _inside(value):
            if type(inner) in _ATOMS:
                continue
            if isinstance(inner, Tensor | Storage | nn.Module) or (type(inner) is Inert and inner.tensor):
                having.append(id(value))
            if isinstance(inner, _CONTAINERS):
                parents.setdefault(id(inner), []).append(id(value))
                if id(inner) not in seen:
                    seen.add(id(inner))
                    todo.append(inner)
    found: set[int] = set()
    while having:
        if (one := having.pop()) not in found:
            found.add(one)
            having += parents.get(one, ())
    return found


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif type(value) is Inert:
        yield from value.args
        yield from (part for part in (value.state, value.items, value.listed) if part is not None)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value


def attributes(value: Inert) -> dict[Any, Any] | None:
    """What the object's attributes were set to; None where it was built in a way of its own."""
    state = value.state
    if type(state) is tuple and len(state) == 2 and all(isinstance(part, dict | None) for part in state):
        return {**(state[0] or {}), **(state[1] or {})}  # the second ones are slots
    return state if isinstance(state, dict) else None


def _opened(value: Inert, held: set[int], reader: Reader) -> Any:
    if value.tensor:
        return _strange(value, reader)
    if id(value) not in held:
        made = array(reader, value)
        return value if made is None else made
    if re.fullmatch(r"torch\.(cuda\.)?\w+Tensor", value.kind) and type(value.state) is tuple:
        return of_storage(reader, *value.state)  # as tensors were kept before PyTorch 0.2
    if any(isinstance(arg, Tensor) or id(arg) in held for arg in value.args):
        return value
    state = attributes(value)
    if state is not None and is_network(state):
        return _state_dict(value, reader)
    if not state and not value.items:
        return value
    reader.spend(64 * (len(state or ()) + len(value.items or ())))
    own = f"is an attribute of {kind(value)}, whose code alone tells what it is"
    loose = {
        name: _strange(Inert(kind(value), tensor=own, needs_code=True), reader)
        for name, part in (state or {}).items()
        if isinstance(part, Tensor) and part.ndim
    }
    return {**(state or {}), **loose, **(value.items or {})}


def _strange(value: Inert, reader: Reader) -> UnreadTensor:
    reader.spend(TENSOR)
    made = torch.empty(1, device="meta").as_subclass(UnreadTensor)
    made.what, made.needs_code = value.tensor, value.needs_code
    return made


def is_network(state: dict[Any, Any]) -> bool:
    """Whether what an object was built from is that of a torch.nn.Module, whatever its class."""
    return all(isinstance(state.get(part), dict) for part in _PARTS)


def _state_dict(network: Inert, reader: Reader) -> dict[str, Any]:
    """What `network.state_dict()` gives, unless its class changes that; a part without one stays an Inert."""
    found: dict[str, Any] = {}

    def look(value: Any, prefix: str, depth: int) -> None:
        reader.spend(TENSOR + len(prefix))
        if depth > MAX_DEPTH:
            raise TooMuch(f"its networks lie {MAX_DEPTH} deep in one another")
        state = attributes(value) if type(value) is Inert else None
        if state is None or not is_network(state) or ".quantized." in value.kind:
            own = f"is a {kind(value)}, which keeps its weights in a way of its own"
            found[prefix[:-1]] = Inert(kind(value), tensor=own, needs_code=True)
            return
        passing = state.get("_non_persistent_buffers_set")
        passing = passing if isinstance(passing, set) else ()
        kept = {name: buffer for name, buffer in state["_buffers"].items() if name not in passing}
        for name, tensor in (*state["_parameters"].items(), *kept.items()):
            if tensor is None:
                continue
            if type(name) is not str:
                raise UnpicklingError("a parameter has no name")
            reader.spend(TENSOR + len(prefix) + len(name))
            if not isinstance(tensor, Tensor) and not (type(tensor) is Inert and tensor.tensor):
                tensor = Inert(kind(tensor), tensor=f"is a {kind(tensor)}", needs_code=True)
            found[prefix + name] = tensor
        for name, inner in state["_modules"].items():
            if inner is not None:
                look(inner, f"{prefix}{_name(name)}.", depth + 1)

    look(network, "", 0)
    return found


def _name(key: Any) -> str:
    """A key as text: its kind where it is none that can be shown."""
    if isinstance(key, str | int | float | bool | None):
        return str(key)
    return kind(key)


def _short(name: str) -> str:
    return name if len(name) <= SHOWN else f"{name[: SHOWN - 1]}…"
