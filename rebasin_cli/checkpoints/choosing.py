"""Which of the sets of weights in a saved object is the model: one of them, or all as its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import CheckpointError
from .saved import AVERAGED, COPIES, ROLES, Node, dotted, text_of, words
from .wrappers import plain_names

# The order of preference. Averaged weights come last: they are what --key asks for.
ENVELOPES = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "module",
    "network",
    "weights",
    "model_weights",
    "params",
    "ema",
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
)


def choose(node: Node, strip: bool = True) -> tuple[Node, list[Node]]:
    """The dictionary that is the model, whole or the one set of weights in it, and the copies of that set.

    With `strip`, a state dict that is the only thing here may be one in an envelope of any name.
    """
    sets = {key: inner for key, inner in node.inner.items() if inner.weight}
    if node.own_weights() and (sets or not node.inner):
        return node, []
    if not sets:  # no weights; numbers may do
        if node.tensors or len(node.inner) != 1:
            return node, []
        sets = dict(node.inner)
    order = [key for key in ENVELOPES if key in sets] + [key for key in sets if key not in ENVELOPES]
    raw = [key for key in order if not words(key) & AVERAGED]
    first = next((key for key in order if key in ENVELOPES), (raw or order)[0])
    if first not in ENVELOPES and len(raw or order) > 1:
        return node, []
    inner, copies = choose(sets[first], strip=first in ENVELOPES)
    if first not in ENVELOPES and inner is sets[first] and not (strip and inner.tensors):
        return node, []  # a tree of dictionaries: this is the first step in all its names
    shapes = _shapes(inner) if len(order) > 1 else {}
    for key in order:
        if key != first:
            if not _is_copy(key, sets[key], shapes):
                return node, []
            other, more = choose(sets[key])
            copies = [*copies, other, *more]
    return inner, copies


def _is_copy(key: Any, node: Node, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a set has the names and shapes of the model: its average, or what it was at another time.

    A set that is called so may have some of the names only, behind others, or be a list without names.
    """
    called, own = words(key), _shapes(choose(node)[0])
    if not called & COPIES:
        return own == dict(shapes) and not called & ROLES
    if all(name.isdigit() for name in own):
        return not Counter(own.values()) - Counter(shapes.values())
    return all(any(shapes.get(end) == shape for end in _ends(name)) for name, shape in own.items())


def _ends(name: str) -> Iterator[str]:
    """A name, and what is left of it without its first segment, its first two …"""
    yield name
    for _ in range(min(name.count("."), 8)):
        name = name.partition(".")[2]
        yield name


def _shapes(node: Node) -> dict[str, tuple[int, ...]]:
    """Shapes of what can be weights, by plain names; those of two tensors that share one are of either."""
    tensors = {}
    for inner in node.all():
        plain, _ = _plain_or_stored(inner)
        before = dotted(inner.path[len(node.path) :])
        for key, tensor in inner.tensors.items():
            if tensor.ndim and tensor.is_floating_point() and (own := plain.get(text_of(key) or "")):
                tensors[f"{before}.{own}" if before else own] = tuple(tensor.shape)
    return tensors


def _plain_or_stored(node: Node) -> tuple[dict[str, str], tuple[str, ...]]:
    names = [text_of(key) or "" for key in node.tensors]
    try:
        return plain_names(names, lightning=False, name="")
    except CheckpointError:
        return {name: name for name in names}, ()
