"""What wrappers (DataParallel, torch.compile, FSDP, Lightning) put before names, and names without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import methodcaller

from ..errors import CheckpointError

# Segments that only wrappers use, wherever they stand in a name.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
COUNTER = "n_averaged"  # what torch.optim.swa_utils.AveragedModel keeps beside its `module.` weights


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
    if not any("." in stored or stored == COUNTER for stored in plain):
        return plain, ()

    def rename(change: Callable[[str], str]) -> None:
        for stored, current in plain.items():
            plain[stored] = change(current)

    for segment in WRAPPERS:
        if any(segment in current.split(".")[:-1] for current in plain.values()):
            stripped[f"{segment}."] = None
            rename(partial(_without, segment))
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
        rename(methodcaller("removeprefix", prefix))
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
