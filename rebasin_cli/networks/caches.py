"""Attributes that a module fills in its first call and keeps: what a call computed, a weight in another form.

A cache tells nothing of the weights that the module has by now. One that is dropped when the module goes to
training needs no search. Of the others it is tried: what holds tensors is emptied, and is a cache if a run
fills it again, and the next one leaves that as it is. A table that was made with the module makes the run
fail, or stays empty; what is new in every call is a record of the calls.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

DEPTH = 3  # containers within containers that are written down
CONTAINERS = (dict, OrderedDict, list, set, deque)
OWN = frozenset(vars(nn.Module()))  # parameters, buffers, submodules and hooks
GONE, OTHER = object(), object()
MOST = 16  # kinds of attributes that are tried

Attribute = tuple[nn.Module, str]

# Attributes of modules that were found to be caches, and how they are emptied.
_known: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()
# What attributes held when a module was first seen here: None, plain containers, and OTHER for all else.
_first: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()


def empty(network: nn.Module, run: Callable[[], Any]) -> None:
    """Empty every cache that `run`, a call of the network, fills again; all else is as it was."""
    for attributes in list(_kinds(network).values())[:MOST]:
        value = vars(attributes[0][0])[attributes[0][1]]
        ways = (None, GONE) if isinstance(value, torch.Tensor) else (type(value)(), None)
        for way in ways:
            if _filled_again(network, attributes, way, run):
                for module, name in attributes:
                    _known.setdefault(module, {})[name] = way
                break


def drop(network: nn.Module) -> None:
    """Empty what a network would compute with although its weights are others by now.

    That is what its modules empty themselves when they go to training, what `empty` found, and tensors in
    attributes that held none when the network was seen here first.
    """
    for module in network.modules():
        if module not in _first:
            _first[module] = {name: _seen(value) for name, value in vars(module).items()}
    if not any(True for _ in kept(network)):
        return
    modes = {module: module.training for module in network.modules()}
    with contextlib.suppress(Exception):  # some graphs know no training
        network.train()
    for module, mode in modes.items():
        module.training = mode
        for name, way in _known.get(module, {}).items():
            if name in vars(module):
                _empty([(module, name)], way)
    weights = _weights(network)
    for module in modes:
        _as_first(module, weights)


def _seen(value: Any) -> Any:
    if value is None:
        return None
    plain = type(value) in CONTAINERS and not any(True for _ in _tensors(value))
    return value.copy() if plain else OTHER


def _as_first(module: nn.Module, weights: set[int]) -> None:
    """Let attributes that hold tensors by now hold what they held at first."""
    own, first = vars(module), _first[module]
    for name in [name for name in own if name not in OWN and first.get(name, GONE) is not OTHER]:
        if any(id(tensor) not in weights for tensor in _tensors(own[name])):
            if name in first:
                own[name] = None if first[name] is None else first[name].copy()
            else:
                del own[name]


def kept(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that are neither parameters nor buffers, by the attribute that holds them."""
    weights = _weights(network)
    for prefix, module in network.named_modules():
        for name, value in vars(module).items():
            if name not in OWN:
                held = (tensor for tensor in _tensors(value) if id(tensor) not in weights)
                yield from ((f"{prefix}.{name}".removeprefix("."), tensor) for tensor in held)


def _weights(network: nn.Module) -> set[int]:
    """Parameters and buffers, which modules may hold under a second name, as recurrent ones do."""
    return {id(tensor) for tensor in (*network.parameters(), *network.buffers())}


def _kinds(network: nn.Module) -> dict[Any, list[Attribute]]:
    """Attributes that hold tensors; those of like modules are of one kind."""
    found: dict[Any, list[Attribute]] = {}
    weights = _weights(network)
    for module in network.modules():
        for name, value in vars(module).items():
            if name not in OWN and any(id(tensor) not in weights for tensor in _tensors(value)):
                found.setdefault((type(module), name, type(value)), []).append((module, name))
    return found


def _tensors(value: Any, depth: int = DEPTH) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in CONTAINERS and depth:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inner, depth - 1)


def _filled_again(
    network: nn.Module, attributes: Sequence[Attribute], way: Any, run: Callable[[], Any]
) -> bool:
    """Whether a run fills what was emptied this way; then it is left empty."""
    before = list(noted(network))
    _empty(attributes, way)
    filled = False
    with contextlib.suppress(Exception), torch.no_grad():  # of the user's code, that misses what is gone
        run()
        first = [list(_tensors(vars(module).get(name))) for module, name in attributes]
        run()  # a cache is read now; a record of calls grows, or holds the last one
        then = [list(_tensors(vars(module).get(name))) for module, name in attributes]
        filled = all(first) and [*map(_ids, first)] == [*map(_ids, then)]
    put_back(before)
    if filled:
        _empty(attributes, way)
    return filled


def _ids(things: Iterable[Any]) -> list[int]:
    return list(map(id, things))


def _empty(attributes: Sequence[Attribute], way: Any) -> None:
    for module, name in attributes:
        if way is GONE:
            del vars(module)[name]
        else:
            vars(module)[name] = None if way is None else type(way)()


def noted(network: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Every module's attributes, and the plain containers among them, each with what it holds."""
    seen: set[int] = set()
    for module in network.modules():
        own = vars(module)
        yield own, dict(own)
        for value in own.values():
            yield from _held(value, seen, DEPTH)


def _held(value: Any, seen: set[int], depth: int) -> Iterator[tuple[Any, Any]]:
    if type(value) not in CONTAINERS or id(value) in seen or not depth:
        return
    seen.add(id(value))
    yield value, value.copy()
    for inner in list(value.values()) if isinstance(value, dict) else list(value):
        yield from _held(inner, seen, depth - 1)


def put_back(before: list[tuple[Any, Any]]) -> None:
    for container, held in before:
        if _same(container, held):
            continue
        if isinstance(container, dict):  # key by key: a module is never seen without its attributes
            for key in [key for key in container if key not in held]:
                del container[key]
            container.update(held)
        else:
            container.clear()
            (container.update if isinstance(container, set) else container.extend)(held)


def _same(container: Any, held: Any) -> bool:
    """Whether the very same things are in it; `==` would compare tensors."""
    if len(container) != len(held):
        return False
    if not held:  # as of most hooks: there are thousands in a network
        return True
    if isinstance(container, set):
        return bool(container == held)
    if isinstance(container, dict):
        return _ids(container) == _ids(held) and _ids(container.values()) == _ids(held.values())
    return _ids(container) == _ids(held)
