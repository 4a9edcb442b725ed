"""Where in a saved object the weights are, and what they are called without their wrappers.

Training scripts seldom save a bare state dict: the weights lie in an envelope beside an epoch, an
optimiser, a moving average. Wrappers (DataParallel, torch.compile, Lightning) prefix every name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import CheckpointError, NoEnvelope, UsageError, unknown
from .inert import kind

# The order of preference. Averaged weights come last: they are what --key asks for.
ENVELOPES = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "module",
    "ema",
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
)
LIGHTNING = "pytorch-lightning_version"

# Segments that only wrappers use, wherever they stand in a name.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
COUNTER = "n_averaged"  # what torch.optim.swa_utils.AveragedModel keeps beside its `module.` weights

Path = tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """One state dict, the dotted path to it ("" for the object itself), and the paths of the others."""

    tensors: Mapping[Any, Any]
    envelope: str
    alternatives: tuple[str, ...]
    lightning: bool


def find(saved: Any, *, key: str | None, name: str) -> Found:
    """The state dict in `saved`: the one that `key` names, else the first in the order of `ENVELOPES`.

    Without `key`, an envelope of another name is taken when it is the only one. `name` is the file in
    messages. Raises CheckpointError where there are no named tensors or none to prefer, UsageError where
    there is nothing under `key`.
    """
    whole = _candidates(saved)
    lightning = isinstance(saved, Mapping) and LIGHTNING in saved
    if key:
        return _find_key(saved, key, whole, lightning, name)
    known = [path for path in whole if not path or path[0] in ENVELOPES]
    if not whole:
        raise CheckpointError(f"{name} holds no named tensors", problems=_contents(saved))
    if not known and len(whole) > 1:
        raise CheckpointError(
            f"{name} holds several sets of weights, none under a usual name",
            problems=[_dotted(path) for path in whole],
            hint=f"Choose one with --key, such as --key {_dotted(next(iter(whole)))}.",
        )
    chosen = (known or list(whole))[0]
    return _found(whole, chosen, lightning and chosen[:1] == ("state_dict",))


def _found(whole: Mapping[Path, Mapping], chosen: Path, lightning: bool) -> Found:
    others = tuple(_dotted(path) for path in whole if path != chosen and path)
    return Found(whole[chosen], _dotted(chosen), others, lightning)


def _find_key(saved: Any, key: str, whole: Mapping[Path, Mapping], lightning: bool, name: str) -> Found:
    try:
        value = _descend(saved, key)
    except KeyError:
        names = {_dotted(path) for path in whole if path}
        if isinstance(saved, Mapping):
            names |= {str(entry) for entry, value in saved.items() if isinstance(value, Mapping)}
        if not names:
            raise NoEnvelope(f"{name} has no key {key!r}: its tensors are in no envelope") from None
        error = NoEnvelope if len(whole) == 1 else UsageError
        raise unknown(f"key in {name}:", key, names, error=error) from None
    inside = _candidates(value)
    if not inside:
        choices = ", ".join(_dotted(path) for path in whole if path) or "none"
        raise UsageError(
            f"{name}: {key!r} is {_kind(value)} without named tensors",
            hint=f"Keys with tensors: {choices}.",
        )
    path = next(iter(inside))
    envelope = ".".join(filter(None, (key, _dotted(path))))
    others = tuple(_dotted(other) for other in whole if other and _dotted(other) != envelope)
    return Found(inside[path], envelope, others, lightning and key == "state_dict")


def _descend(value: Any, key: str) -> Any:
    """Follow a dotted key; the keys themselves may hold dots. Raises KeyError."""
    value = _opened(value)
    if not isinstance(value, Mapping):
        raise KeyError(key)
    by_text = {str(entry): entry for entry in value}
    if key in by_text:
        return value[by_text[key]]
    parts = key.split(".")
    for cut in range(1, len(parts)):
        head, rest = ".".join(parts[:cut]), ".".join(parts[cut:])
        if head in by_text:
            try:
                return _descend(value[by_text[head]], rest)
            except KeyError:
                continue
    raise KeyError(key)


def _opened(value: Any) -> Any:
    return value.state_dict() if isinstance(value, nn.Module) else value


def _candidates(saved: Any) -> dict[Path, Mapping]:
    """Every state dict by its path, those in `ENVELOPES` first."""
    found: dict[Path, Mapping] = {}
    seen: set[int] = set()  # a pickle may hold itself, or one dictionary under many names

    def look(value: Any, path: Path) -> None:
        if id(value) in seen or len(path) > 4:
            return
        seen.add(id(value))
        value = _opened(value)
        if not isinstance(value, Mapping):
            return
        before = len(found)
        for entry in ENVELOPES:
            if entry in value:
                look(value[entry], (*path, entry))
        tensors = _tensors(value)
        if len(found) == before and any(tensor.ndim for tensor in tensors):
            found[path] = value
            return
        if len(path) <= 1:  # a name of the user's own: beside the usual ones or just inside them
            for entry, inner in value.items():
                if isinstance(entry, str) and entry not in ENVELOPES:
                    inner = _opened(inner)
                    if any(tensor.ndim and tensor.is_floating_point() for tensor in _tensors(inner)):
                        found[(*path, entry)] = inner
        if len(found) == before and tensors:  # numbers only; no better place
            found[path] = value

    look(saved, ())
    return found


def _tensors(value: Any) -> list[Tensor]:
    if not isinstance(value, Mapping):
        return []
    return [tensor for name, tensor in value.items() if isinstance(name, str) and isinstance(tensor, Tensor)]


def plain_names(
    names: Iterable[str], *, lightning: bool, name: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Names without what wrappers put before them: {stored: plain}, and the prefixes that were stripped.

    `_orig_mod.` goes wherever it stands; a leading `module.` as often as all names have it; Lightning's
    leading `model.` or `net.` once, and only in a Lightning checkpoint. An averaged model's `n_averaged`
    counter is left out where its `module.` goes. Raises CheckpointError where two names become one.
    """
    plain = {stored: stored for stored in names}
    stripped: dict[str, None] = {}

    def rename(change: Callable[[str], str]) -> None:
        for stored, current in plain.items():
            plain[stored] = change(current)

    for segment in WRAPPERS:
        if any(segment in current.split(".")[:-1] for current in plain.values()):
            stripped[f"{segment}."] = None
            rename(lambda current, segment=segment: _without(segment, current))
    prefixes = ["model.", "net."] if lightning else []
    while True:
        counter = {stored for stored, current in plain.items() if current == COUNTER}
        rest = [current for stored, current in plain.items() if stored not in counter]
        shared = [prefix for prefix in ("module.", *prefixes) if _all_have(prefix, rest)]
        if not shared:
            break
        prefix = shared[0]
        if prefix == "module.":
            for stored in counter:
                del plain[stored]
        else:
            prefixes = []
        stripped[prefix] = None
        rename(lambda current, prefix=prefix: current.removeprefix(prefix))
    _check_collisions(plain, name)
    return plain, tuple(stripped)


def _without(segment: str, name: str) -> str:
    *modules, last = name.split(".")
    return ".".join([*(module for module in modules if module != segment), last])


def _all_have(prefix: str, names: list[str]) -> bool:
    return bool(names) and all(name.startswith(prefix) and name != prefix for name in names)


def _check_collisions(plain: Mapping[str, str], name: str) -> None:
    # A `module.` that only some names have stays, unless the same tensor is there without it too.
    by_name: dict[str, list[str]] = {}
    for stored, current in plain.items():
        while current.startswith("module."):
            current = current.removeprefix("module.")
        by_name.setdefault(current, []).append(stored)
    same = {current: stored for current, stored in by_name.items() if len(stored) > 1}
    if problems := [f"{' and '.join(stored)}  are both {current}" for current, stored in same.items()]:
        raise CheckpointError(
            f"{name}: without the prefixes that wrappers add, tensors share a name",
            problems=problems,
            hint="It seems to hold two networks: save each to its own file.",
        )


def _dotted(path: Path) -> str:
    return ".".join(path)


def _kind(value: Any) -> str:
    word = kind(value)
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def _contents(saved: Any) -> list[str]:
    if not isinstance(saved, Mapping):
        return [f"it is {_kind(saved)}"]
    return [f"{key}  {_kind(value)}" for key, value in saved.items()] or ["it is empty"]
