"""What the attributes of a network's modules hold, written down and put back: nothing is copied."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

from torch import nn

DEPTH = 3  # containers within containers that are written down
CONTAINERS = (dict, OrderedDict, list, set, deque)


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
    if isinstance(container, set):
        return bool(container == held)
    if isinstance(container, dict):
        return all(a is b and container[a] is held[b] for a, b in zip(container, held, strict=True))
    return all(a is b for a, b in zip(container, held, strict=True))
