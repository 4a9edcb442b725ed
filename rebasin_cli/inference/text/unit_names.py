"""What a person would call the units: `stream`, `blocks.0.hidden`, `blocks.0.heads`.

Every variable goes by the module that writes it: that whose tensors mention it first. Inside a numbered block
the block and a noun are enough where they are not said of two things; else more of the module's path is
said, alike in all blocks. What several blocks write into is a stream; what modules of one list in a block
share (hidden units of experts) is the block's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..axes.axes import Axes, Expr, Var, variables
from ..axes.units import Units

HIDDEN, STREAM = "hidden", "stream"
WRITERS = 3  # modules of any kind that write into a stream; in several blocks fewer will do
LEVELS = 4  # how much is said of the path

_NUMBER = re.compile(r"\d+[a-z]?")


def names(
    units: Units, tensors: Mapping[str, Axes], used: Sequence[str], hints: Sequence[tuple[Expr, str]]
) -> dict[Var, str]:
    """A name for every variable, no two alike."""
    called: dict[Var, str] = {}
    for axis, hint in hints:
        if isinstance(var := units.resolve(axis), Var):
            called.setdefault(var, hint)
    written: dict[str, list[Var]] = {}
    known: set[Var] = set()
    for name in dict.fromkeys([*used, *tensors]):
        for axis in tensors[name]:
            for var in variables(units.resolve(axis)):
                if var not in known:
                    known.add(var)
                    written.setdefault(_module(name), []).append(var)
    streams, shared = _streams(units, tensors, called)
    wanted: dict[Var, _Wanted] = {}
    skip = _wrappers([path.split(".") for path in written])
    for module, group in written.items():
        endings = Counter(called.get(var, "") for var in group)
        for k, var in enumerate(group):
            hint = called.get(var, "")
            if var in streams:
                inside = _common([path.split(".")[skip:] for path in streams[var]])
                ending = f".{hint or k}" if len(group) > 1 and group[0] in streams else ""
                short = STREAM + ending
                wanted[var] = _Wanted((short, ".".join((*inside, short))))
            elif var in shared:
                noun = hint or HIDDEN
                wanted[var] = _Wanted(_levels([*shared[var], noun], skip, noun, ""))
            else:
                own = hint if hint and endings[hint] == 1 else str(k)
                alone = len(group) == 1
                wanted[var] = _Wanted(_levels(module.split("."), skip, hint, "" if alone else own))
    return _settled(wanted)


@dataclass(frozen=True)
class _Wanted:
    """The names that a variable may have, the shortest first."""

    names: tuple[str, ...]

    @property
    def kind(self) -> str:
        """What is equal for the same variable of another block."""
        return ".".join("#" if _NUMBER.fullmatch(part) else part for part in self.names[-1].split("."))


def _levels(path: list[str], skip: int, hint: str, own: str) -> tuple[str, ...]:
    numbers = [k for k, part in enumerate(path) if _NUMBER.fullmatch(part)]
    whole = ".".join((*path[skip:], own) if own else path[skip:])
    if not numbers or numbers[-1] == len(path) - 1:
        return (whole,)
    first, end = max(numbers[0] - 1, 0), numbers[-1] + 1
    noun = hint or HIDDEN
    longer = (path[-1], own) if own else (path[-1],)
    return (
        ".".join((*path[first:end], noun)),
        ".".join((*path[skip:end], noun)),
        ".".join((*path[skip:end], *longer)),
        whole,
    )


def _settled(wanted: Mapping[Var, _Wanted]) -> dict[Var, str]:
    """The shortest names that tell all apart, of one length for all variables of a kind."""
    level = dict.fromkeys((one.kind for one in wanted.values()), 0)
    for _ in range(LEVELS * len(level)):
        found = {var: one.names[min(level[one.kind], len(one.names) - 1)] for var, one in wanted.items()}
        count = Counter(found.values())
        twice = {one.kind for var, one in wanted.items() if count[found[var]] > 1}
        if not (longer := [kind for kind in twice if level[kind] < LEVELS - 1]):
            break
        for kind in longer:
            level[kind] += 1
    taken: set[str] = set()
    for var, name in found.items() if wanted else ():
        found[var] = _unused(name, taken)
        taken.add(found[var])
    return found if wanted else {}


def _streams(
    units: Units, tensors: Mapping[str, Axes], called: Mapping[Var, str]
) -> tuple[dict[Var, list[str]], dict[Var, list[str]]]:
    """What many matrices write into, with their modules; what modules of a list share, with its path."""
    writers: dict[Var, dict[str, None]] = {}
    for name, axes in tensors.items():
        if len(axes) > 1:
            for var in variables(units.resolve(axes[0])):
                writers.setdefault(var, {})[_module(name)] = None
    every = {var: {_block(path) for path in modules} - {""} for var, modules in writers.items()}
    streams, shared = {}, {}
    for var, modules in writers.items():
        blocks = every[var]
        inside = _common([block.split(".") for block in blocks])
        if len(blocks) > 1 and _block(".".join(inside)) and any(blocks < other for other in every.values()):
            shared[var] = inside  # another is written by these and more: that is the stream
        elif len(blocks) > 1 or (blocks and len(modules) >= WRITERS and var not in called):
            streams[var] = list(modules)
    return streams, shared


def _block(path: str) -> str:
    parts = path.split(".")
    numbers = [k for k, part in enumerate(parts[:-1]) if _NUMBER.fullmatch(part)]
    return ".".join(parts[: numbers[-1] + 1]) if numbers else ""


def _wrappers(paths: Sequence[Sequence[str]]) -> int:
    """How many parts all paths begin with and nobody needs: not the name of a list."""
    shared = _common(paths)
    numbered = [k for k, part in enumerate(next(iter(paths), ())) if _NUMBER.fullmatch(part)]
    return min(len(shared), *(k - 1 for k in numbered[:1]), len(shared))


def _common(paths: Iterable[Sequence[str]]) -> list[str]:
    """The parts that all begin with, the last part of any not among them."""
    found: list[str] = []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        found.append(parts[0])
    return found


def _module(tensor: str) -> str:
    """`layer1.0.conv1.weight` → `layer1.0.conv1`, in characters that a word may have."""
    path = tensor.rpartition(".")[0] or tensor
    path = re.sub(r"\.parametrizations\.\w+$", "", path)
    path = re.sub(r"[^A-Za-z0-9_.-]", "_", path).strip(".-")
    return path if path[:1].isalpha() else f"h{path}"


def _unused(wanted: str, taken: set[str]) -> str:
    name, k = wanted, 2
    while name in taken:
        name, k = f"{wanted}.{k}", k + 1
    return name
