"""What a network returns, and which of it is its function: every tensor, but for records of its inside.

Tensors are found in tuples, lists and mappings, and in the attributes of all other objects, however deep.
What `forward` returns beside its answer, to be used again or looked at, is no part of the function: caches,
hidden states, attentions, and what the user says. What is measured is, whatever it is.
"""

from __future__ import annotations

import enum
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..datasets.batches import describe
from ..errors import NetworkError, UsageError
from ..runtime.text import some
from .forward import pick

DEPTH = 100  # objects within objects that are looked into
MOST = 100_000  # objects that are looked at
SHOWN = 12  # names that a message lists
WHOLE = "output"  # what a network's one tensor is called, which has no name
RECORD = re.compile(
    r"(.*_)?(hidden_states|attentions|past_key_values?|mems|caches?)|"
    r"encoder_last_hidden_state|past_buckets_states|cache_params"
)
NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
PLAIN = (  # without tensors that are returned
    *(type(None), str, bytes, type, range, slice, enum.Enum, nn.Module, types.ModuleType),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, *NUMBERS),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator),
)
OF_RESULTS = ("builtins", "collections", "types", "argparse")
HOLDING = (Mapping, tuple, list, deque, set, frozenset)

Way = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """A tensor, or something else, and the way to it: keys, attributes, numbers.

    `record` is the way to the record of the inside that it is in; () where it is in none. `tensor` is None
    for caches, whose tensors are nobody's matter, and for all that is no tensor; `kind` is the type of what
    is not looked into. `also` is the same way with numbers for fields, and with negative ones for numbers.
    """

    way: Way
    tensor: Tensor | None
    record: Way = ()
    kind: str = ""
    also: Way = ()

    @property
    def name(self) -> str:
        return ".".join(self.way) or WHOLE


@dataclass(frozen=True)
class Returned:
    """The function's `tensors`, their `places` among all tensors returned, their names, and what is left out.

    `kept` and `left_out` name whole containers where all of them is kept, or left out; `names` has one name a
    tensor.
    """

    tensors: tuple[Tensor, ...]
    places: tuple[int, ...]
    names: tuple[str, ...]
    kept: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kept:
    """Which outputs are the function: all but records of the inside and `not_kept`; `output`, which is
    measured, always.

    `output` is a key or index as `pick` takes it; `not_kept` are keys, attributes, indices, or dotted ways of
    these.
    """

    output: str | int | None = None
    not_kept: tuple[str, ...] = ()

    def of(self, returned: Any) -> Returned:
        """What of all that a network returned is its function.

        Raises UsageError for names of `not_kept` that there are not, or that leave nothing, NetworkError
        where there is no such output, or an object is returned that cannot be looked into.
        """
        leaves = list(leaves_of(returned))
        named = self._named(returned, leaves)
        measured = _measured(returned, leaves, self.output)
        if measured and measured <= named:
            raise UsageError(
                f"--not-kept {', '.join(self.not_kept)}: that is what --output {self.output} measures",
                hint="Leave one of the two out",
            )
        every = {k for k, leaf in enumerate(leaves) if leaf.tensor is not None}
        inside = {k for k, leaf in enumerate(leaves) if leaf.record}
        kept = ({*range(len(leaves))} - inside | measured) - named
        _check_open(leaves[k] for k in sorted(kept))
        if not kept & every:  # records are all that it returns
            kept = every - named
        if every and not kept & every:
            raise UsageError(
                f"--not-kept {', '.join(self.not_kept)} leaves nothing of what the network returns",
                hint="What is left is the function that is to stay: keep at least one output",
            )
        places = {k: place for place, k in enumerate(sorted(every))}
        chosen = sorted(kept & every)
        return Returned(
            tuple(tensor for k in chosen if (tensor := leaves[k].tensor) is not None),  # all of them
            tuple(places[k] for k in chosen),
            tuple(leaves[k].name for k in chosen),
            *_told([leaf for leaf in leaves if _holds(leaf)], [leaves[k] for k in chosen]),
        )

    def _named(self, returned: Any, leaves: Sequence[Leaf]) -> set[int]:
        """The leaves that `not_kept` names. Raises UsageError for names of nothing."""
        found: set[int] = set()
        unknown = []
        for name in self.not_kept:
            its = {k for k, leaf in enumerate(leaves) if leaf.way and _leads(name, leaf)}
            if not its and not re.fullmatch(r"-?\d+", name):
                its = {k for k, leaf in enumerate(leaves) if name in leaf.way}
            found |= its
            unknown += [name] if not its else []
        if unknown:
            there = [leaf for leaf in leaves if leaf.way and _holds(leaf)]
            names = some(dict.fromkeys(name for leaf in there for name in _names(leaf)), SHOWN)
            raise UsageError(
                f"--not-kept {', '.join(unknown)}: the network returns nothing of that name",
                problems=[f"it returns {names or describe(returned)}"],
                hint="Name a key, an attribute, an index, or a way of these with dots between",
            )
        return found


def _check_open(leaves: Iterable[Leaf]) -> None:
    for leaf in leaves:
        if leaf.kind:
            raise NetworkError(
                f"the network returns an object of type {leaf.kind}, in which no tensor can be looked for",
                problems=[f"{leaf.name}  is {leaf.kind}"],
                hint="Return tensors, or objects that have them as attributes"
                + (f"; if it is no part of the function: --not-kept {leaf.name}" if leaf.way else ""),
            )


def _holds(leaf: Leaf) -> bool:
    """Whether there may be tensors: not in numbers and texts."""
    return leaf.tensor is not None or bool(leaf.kind)


def _measured(returned: Any, leaves: Sequence[Leaf], output: str | int | None) -> set[int]:
    """The leaves that `output` picks, none without one; all, where it computes something of them."""
    if output is None:
        return set()
    if isinstance(returned, Tensor):  # its rows, and so all of it
        pick(torch.empty(returned.shape, dtype=returned.dtype, device="meta"), output)
        return {0}
    own = {k for k, leaf in enumerate(leaves) if leaf.tensor is not None}
    try:
        chosen = pick(returned, output)
    except NetworkError:
        raise
    except Exception:  # an attribute that computes
        return own
    ids = {id(leaf.tensor) for leaf in leaves_of(chosen) if leaf.tensor is not None}
    if not ids:
        raise NetworkError(f"the network returns {describe(returned)}, where {output!r} holds no tensor")
    known = {k for k in own if id(leaves[k].tensor) in ids}
    return known if ids <= {id(leaves[k].tensor) for k in own} else own


def places_of(returned: Any, output: str | int | None) -> list[int]:
    """The places, among all tensors returned, of those that `output` picks; of all without one.

    Raises NetworkError where there is no such output.
    """
    leaves = [leaf for leaf in leaves_of(returned) if leaf.tensor is not None]
    return sorted(_measured(returned, leaves, output) if output is not None else range(len(leaves)))


def leaves_of(returned: Any) -> Iterator[Leaf]:
    """Every tensor in what a network returned, in one order always, and every object that is closed.

    Raises NetworkError for more objects than anybody looks through.
    """
    for count, leaf in enumerate(_leaves(returned, Leaf((), None), set())):
        if count > MOST:
            raise NetworkError(
                f"the network returns more than {MOST:,} objects",
                hint="Let forward return what the network computes, and no data of the program's",
            )
        yield leaf


def _leaves(value: Any, at: Leaf, above: set[int], inner: bool = False) -> Iterator[Leaf]:
    """`inner`: it is an attribute of an object that nobody knows, which may hold anything."""
    if isinstance(value, Tensor):
        yield replace(at, tensor=value)
    elif isinstance(value, PLAIN) or id(value) in above or (inner and _of_python(value)):
        yield at
    elif len(above) > DEPTH:
        yield replace(at, kind=type(value).__name__)
    elif at.way and any(cls.__name__.endswith("Cache") for cls in type(value).__mro__):
        yield replace(at, record=at.record or at.way, kind=type(value).__name__)
    elif (parts := _parts(value)) is None:
        closed = not inner or hasattr(value, "__next__") or hasattr(value, "__array__")
        yield replace(at, kind=type(value).__name__ * closed)
    else:
        yield at  # what it holds comes after it
        inner = inner or not isinstance(value, HOLDING)
        for (step, part), other in parts:
            way = (*at.way, step)
            record = at.record or (way if RECORD.fullmatch(step) else ())
            leaf = Leaf(way, None, record, also=(*at.also, other or step))
            yield from _leaves(part, leaf, above | {id(value)}, inner)


def _of_python(value: Any) -> bool:
    """Whether it is a thing of Python's own library that holds no results: a logger, a lock, a thread."""
    library = type(value).__module__.partition(".")[0]
    return library in sys.stdlib_module_names and library not in OF_RESULTS


def _parts(value: Any) -> Iterable[tuple[tuple[str, Any], str]] | None:
    """What an object holds, by key, attribute or number, with another name of it; None: nobody knows."""
    if isinstance(value, Mapping):
        return [((str(key), item), "") for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(pair, str(k)) for k, pair in enumerate(zip(value._fields, value, strict=True))]
    if isinstance(value, (tuple, list, deque)):
        return [((str(k), item), str(k - len(value))) for k, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return None if any(isinstance(item, Tensor) for item in value) else []
    slots = [name for cls in type(value).__mro__ for name in _slots(cls) if hasattr(value, name)]
    if not hasattr(value, "__dict__") and not slots:
        return None
    held = {name: getattr(value, name) for name in slots} | dict(getattr(value, "__dict__", {}))
    return [(pair, "") for pair in held.items()]


def _slots(cls: type) -> Sequence[str]:
    own = vars(cls).get("__slots__", ())
    return (
        [own] if isinstance(own, str) else [name for name in own if name not in ("__dict__", "__weakref__")]
    )


def _leads(name: str, leaf: Leaf) -> bool:
    """Whether a name, or a way with dots, leads to the leaf or to what it is in."""
    return any(f"{'.'.join(way)}.".startswith(f"{name}.") for way in (leaf.way, leaf.also))


def _names(leaf: Leaf) -> Iterator[str]:
    yield leaf.way[0]
    if len(leaf.way) > 1:
        yield ".".join(leaf.way)


def _told(leaves: Sequence[Leaf], kept: Sequence[Leaf]) -> tuple[Way, Way]:
    """The names of what is kept, and of what is not: a container of which all is, by its own name."""
    ways = {leaf.way for leaf in kept}
    sides: dict[Way, set[bool]] = {}
    for leaf in leaves:
        for length in range(1, len(leaf.way) + 1):
            sides.setdefault(leaf.way[:length], set()).add(leaf.way in ways)
    found: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for leaf in leaves:
        least = max(1, len(leaf.record))
        whole = (leaf.way[:n] for n in range(least, len(leaf.way) + 1) if len(sides[leaf.way[:n]]) == 1)
        found[leaf.way in ways][".".join(next(whole, leaf.way)) or WHOLE] = None
    return tuple(found[True]), tuple(found[False])
