"""Where in a saved object the weights are, and what they are called without their wrappers.

Training scripts seldom save a bare state dict: the weights lie in an envelope beside an epoch, an
optimiser, a moving average. Wrappers (DataParallel, torch.compile, Lightning) prefix every name.

A set of weights is taken alone only where all else is copies of it or no weights at all. Else the file is
one model of several parts, and every tensor is called by the way that leads to it: `generator.weight`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, NoEnvelope, RebasinError, UsageError, unknown
from .saved import (
    AVERAGED,
    COPIES,
    MAX_DEPTH,
    OPTIMIZER,
    ROLES,
    Node,
    Path,
    dotted,
    entries,
    kind_of,
    look,
    run_state,
    state_of,
    text_of,
    words,
)
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
LIGHTNING = "pytorch-lightning_version"


@dataclass(frozen=True)
class Found:
    """The tensors that are the model, by their plain names, and what is known about them."""

    tensors: dict[str, Tensor]
    places: dict[str, Path]  # the keys that lead to each in the saved object, as they are stored there
    envelope: str  # the dotted path to them, "" for the object itself
    parts: dict[str, int] = field(default_factory=dict)  # where several are joined: their numbers of values
    alternatives: tuple[str, ...] = ()  # the paths of copies, such as moving averages
    stripped: tuple[str, ...] = ()  # what wrappers had put before the names
    skipped: dict[str, str] = field(default_factory=dict)  # what is left out: its name and what it is


def find(saved: Any, *, key: str | None, name: str) -> Found:
    """The weights in `saved`: those that `key` names ("ema.shadow", or "generator,critic"), else all.

    Copies of the model (a moving average) and what is no weights are left out. `name` is the file in
    messages. Raises CheckpointError where there are no named tensors, or two of one name; UsageError where
    there is nothing under `key`, NoEnvelope where there is nothing to choose from.
    """
    try:
        root = look(saved)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error.message}", hint=error.hint) from None
    if key:
        return _find_keys(saved, key, root, name)
    chosen, copies = choose(root)
    if not _is_named(chosen):
        raise _nothing(saved, root, name)
    others = tuple(dotted(copy.path) for copy in copies if _is_named(copy))
    return _found(
        [chosen], chosen.path, others, _beside(root, chosen, copies), _of_lightning(saved, chosen), name
    )


def _find_keys(saved: Any, key: str, root: Node, name: str) -> Found:
    nodes = []
    for one in [key] if "," not in key or _has(saved, key) else filter(None, map(str.strip, key.split(","))):
        try:
            path, value = _descend(saved, one)
        except KeyError:
            raise _no_key(saved, one, root, name) from None
        node = Node(path[:-1], {path[-1]: value}) if isinstance(value, Tensor) else look(value, path)
        node = choose(node)[0]
        if not _is_named(node):
            sets = ", ".join(map(dotted, _sets(root))) or "none"
            raise UsageError(
                f"{name}: {one!r} is {kind_of(value)} without named tensors",
                hint=f"Keys with tensors: {sets}.",
            )
        nodes.append(node)
    if not nodes:
        raise UsageError(f"--key {key!r} names nothing", hint="Such as --key ema, or --key generator,critic")
    taken = [node.path for node in nodes]
    left = [path for path in _sets(root) if not any(_meet(path, one) for one in taken)]
    rest, others = _rest(root, taken + left), tuple(map(dotted, left))
    if len(nodes) > 1:
        return _found(nodes, (), others, rest, False, name)
    return _found(nodes, nodes[0].path, others, rest, _of_lightning(saved, nodes[0]), name)


def _meet(one: Path, other: Path) -> bool:
    """Whether one of two ways leads on from the other."""
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _no_key(saved: Any, key: str, root: Node, name: str) -> RebasinError:
    names = {dotted(path) for path in _sets(root)}
    if isinstance(saved, Mapping):
        names |= {str(entry) for entry, value in saved.items() if isinstance(value, Mapping)}
    if not names:
        return NoEnvelope(f"{name} has no key {key!r}: its tensors are in no envelope")
    chosen, copies = choose(root)
    alone = chosen.path and not chosen.inner and not copies
    return unknown(f"key in {name}:", key, names, error=NoEnvelope if alone else UsageError)


def _sets(root: Node) -> list[Path]:
    """The paths of all sets of weights: of the model or its parts, and of its copies."""
    chosen, copies = choose(root)
    parts = [choose(inner)[0] for inner in chosen.inner.values()] or [chosen]
    return [node.path for node in (*parts, *copies) if node.path and _is_named(node)]


def _has(saved: Any, key: str) -> bool:
    try:
        return bool(_descend(saved, key))
    except KeyError:
        return False


def _descend(value: Any, key: str, depth: int = 0) -> tuple[Path, Any]:
    """Follow a dotted key: the keys as they are stored, which may hold dots, and the value. KeyError."""
    by_text = {text_of(entry): (entry, inner) for entry, inner in entries(state_of(value)) or ()}
    if key in by_text:
        entry, inner = by_text[key]
        return (entry,), state_of(inner)
    parts = key.split(".") if depth < MAX_DEPTH else []
    for cut in range(1, min(len(parts), MAX_DEPTH)):
        head, rest = ".".join(parts[:cut]), ".".join(parts[cut:])
        if head in by_text:
            try:
                path, inner = _descend(by_text[head][1], rest, depth + 1)
                return (by_text[head][0], *path), inner
            except KeyError:
                continue
    raise KeyError(key)


def _of_lightning(saved: Any, chosen: Node) -> bool:
    return isinstance(saved, Mapping) and LIGHTNING in saved and chosen.path == ("state_dict",)


def _is_named(node: Node) -> bool:
    """Whether any tensor here has a name: a bare list of tensors has none."""
    return any(
        any(isinstance(part, (str, tuple)) for part in (*inner.path, key))
        for inner in node.all()
        for key in inner.tensors
    )


def _found(
    chosen: list[Node],
    base: Path,
    alternatives: tuple[str, ...],
    skipped: dict[str, str],
    lightning: bool,
    name: str,
) -> Found:
    """What is in the chosen dictionaries, named from `base` on. CheckpointError for two of one name."""
    tensors: dict[str, Tensor] = {}
    places: dict[str, list[Path]] = {}
    stripped: dict[str, None] = {}
    for node in (inner for one in chosen for inner in one.all()):
        before = dotted(node.path[len(base) :])
        stored = [text_of(key) or "" for key in node.tensors]
        plain, prefixes = plain_names(stored, lightning=lightning, name=name)
        stripped |= dict.fromkeys(prefixes)
        for text, what in node.beside.items():
            skipped[dotted((*node.path, text))] = what
        for text, key in zip(stored, node.tensors, strict=True):
            full = f"{before}.{plain.get(text, text)}" if before else plain.get(text, text)
            if text not in plain:
                skipped[full] = "the counter of an averaged model"
                continue
            tensors[full] = node.tensors[key]
            places.setdefault(full, []).append((*node.path, key))
    if any(len(paths) > 1 for paths in places.values()):
        twice = {full: " and ".join(map(_keys, paths)) for full, paths in places.items() if len(paths) > 1}
        raise CheckpointError(
            f"{name}: joined, tensors of several parts share a name",
            problems=[f"{paths}  are both {full}" for full, paths in twice.items()],
            hint="Choose parts with --key, or save each under a name of its own.",
        )
    joined = len(chosen) > 1 or (bool(chosen[0].inner) and chosen[0].path == base)
    return Found(
        tensors,
        {full: path for full, (path,) in places.items()},
        envelope=dotted(base),
        parts=_parts(chosen, base) if joined else {},
        alternatives=alternatives,
        stripped=tuple(stripped),
        skipped=skipped,
    )


def _keys(path: Path) -> str:
    return "[" + "][".join(map(repr, path)) + "]"


def _parts(chosen: list[Node], base: Path) -> dict[str, int]:
    """The parts that were joined, and how many values each has."""
    if len(chosen) > 1:
        return {dotted(node.path): _count(node) for node in chosen}
    node = chosen[0]
    parts = {dotted((*base, key)): _count(inner) for key, inner in node.inner.items()}
    parts |= {dotted((*base, key)): tensor.numel() for key, tensor in node.tensors.items()}
    return parts if len(parts) > 1 else {}


def _count(node: Node) -> int:
    return sum(tensor.numel() for inner in node.all() for tensor in inner.tensors.values())


def _beside(root: Node, chosen: Node, copies: list[Node]) -> dict[str, str]:
    """What lies beside the way to the weights, and is none: by its dotted path."""
    told: dict[str, str] = {}
    shown = {copy.path for copy in copies if _is_named(copy)}
    node = root
    for key in (*chosen.path, None):
        if node is chosen:
            break
        before = node.path
        told |= {dotted((*before, text)): what for text, what in node.beside.items()}
        for other, tensor in node.tensors.items():
            told[dotted((*before, other))] = "a number" if tensor.numel() == 1 else "a tensor by itself"
        for other, inner in node.inner.items():
            if other != key and not any(path[: len(inner.path)] == inner.path for path in shown):
                told[dotted(inner.path)] = "a copy without names" if inner.weight else "numbers"
        node = node.inner[key]
    return told


def _rest(root: Node, sets: list[Path]) -> dict[str, str]:
    """What is no weights beside those that a key names, and in none of these sets: by its dotted path."""
    return {
        dotted((*node.path, text)): what
        for node in root.all()
        for text, what in node.beside.items()
        if not any(_meet((*node.path, text), path) for path in sets)
    }


def _nothing(saved: Any, root: Node, name: str) -> CheckpointError:
    contents = [f"{key}  {what}" for key, what in root.beside.items()]
    contents += [f"{key!r}  Tensor" for key in root.tensors]
    states = [key for key, what in root.beside.items() if what == OPTIMIZER]
    whole = run_state("", saved) == OPTIMIZER
    if states or whole:
        hint = "It is the state of a run, not a model: name the file with the weights."
        if not whole and _is_named(look(_descend(saved, states[0])[1], (states[0],))):
            hint += f" To take it all the same: --key {states[0]}"
        return CheckpointError(f"{name} holds {OPTIMIZER}, and no weights", problems=contents, hint=hint)
    if entries(saved) is None:
        contents = [f"it is {kind_of(saved)}"]
    return CheckpointError(f"{name} holds no named tensors", problems=contents or ["it is empty"])


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
