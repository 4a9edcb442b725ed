"""Layers and norms as shapes tell them, and the order in which they fit, one behind the other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..types import Shapes
from .patterns import natural

MOST = 1_000  # layers
TRIES = 20_000  # steps of the search for an order of all of them
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

_NUMBERED = re.compile(r"(?:(?P<list>.+)\.)?(?P<number>[0-9]{1,6})")


class NoChain(Exception):
    """Why tensors are not read as a chain; `asks` where their owner's word would be enough."""

    def __init__(self, *problems: str, asks: bool = False):
        super().__init__("; ".join(problems))
        self.problems, self.asks = problems, asks


@dataclass(frozen=True)
class Layer:
    """A linear layer (no axes of `space`) or a convolution; `flipped` where its weight has inputs first."""

    name: str
    into: int
    out: int
    kernel: tuple[int, ...] = ()
    bias: bool = True
    flipped: bool = False

    @property
    def spot(self) -> tuple[str, int]:
        """The list that it is in, and its number there; -1 in none."""
        return spot_of(self.name)


@dataclass(frozen=True)
class Norm:
    """Tensors with a number a unit: a norm, or an activation with weights. `leaves` are their shapes."""

    name: str
    size: int
    leaves: Mapping[str, tuple[int, ...]]

    @property
    def grouped(self) -> bool:
        """Whether it may be a norm of groups of channels, which do not leave their group."""
        return "bias" in self.leaves and "running_mean" not in self.leaves


def modules_of(shapes: Shapes) -> tuple[list[Layer], list[Norm]]:
    """Layers and norms by the tensors that they have, in the order of the file."""
    leaves: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        module, dot, leaf = name.rpartition(".")
        if not dot:
            raise NoChain(f"{name}  is of no module: expected MODULE.weight")
        leaves.setdefault(module, {})[leaf] = tuple(shape)
    layers, norms, unread = [], [], []
    for module, its in leaves.items():
        if (layer := _layer(module, its)) is not None:
            layers.append(layer)
        elif (norm := _norm(module, its)) is not None:
            norms.append(norm)
        else:
            unread.append(f"{module}  with {', '.join(its)} is no linear layer, convolution or norm")
    if unread:
        raise NoChain(*unread)
    if not 2 <= len(layers) <= MOST:
        raise NoChain(f"{len(layers)} modules have weights of layers, and a chain has 2 to {MOST:,}")
    square = [one for one in layers if one.kernel and one.out == one.into]
    for one in square:  # its bias does not tell, and nor does what comes before and behind
        if any(size % 2 == 0 for size in one.kernel) or any(other.flipped for other in layers):
            raise NoChain(f"{one.name}  may be transposed, with inputs first in its weight")
    return layers, norms


def _layer(name: str, leaves: Mapping[str, tuple[int, ...]]) -> Layer | None:
    weight, bias = leaves.get("weight", ()), leaves.get("bias")
    if not 2 <= len(weight) <= 5 or not leaves.keys() <= {"weight", "bias"} or 0 in weight:
        return None
    rows, columns, *kernel = weight
    if bias is None or bias == (rows,):
        return Layer(name, columns, rows, tuple(kernel), bias is not None)
    if kernel and bias == (columns,):
        return Layer(name, rows, columns, tuple(kernel), flipped=True)
    return None


def _norm(name: str, leaves: Mapping[str, tuple[int, ...]]) -> Norm | None:
    sizes = {shape for leaf, shape in leaves.items() if leaf != "num_batches_tracked"}
    known = leaves.keys() <= {"weight", "bias", *STATISTICS}
    if not known or len(sizes) != 1 or leaves.get("num_batches_tracked", ()) != ():
        return None
    (shape,) = sizes
    return Norm(name, shape[0], leaves) if len(shape) == 1 else None


def flipped(layers: Sequence[Layer]) -> list[Layer]:
    """The same with transposed convolutions for those without biases, where these are not all square."""
    open_ = [one for one in layers if one.kernel and not one.bias]
    if all(one.into == one.out for one in open_):
        return []
    return [replace(o, into=o.out, out=o.into, flipped=True) if o in open_ else o for o in layers]


def spot_of(name: str) -> tuple[str, int]:
    found = _NUMBERED.fullmatch(name)
    return (name, -1) if found is None else (found["list"] or "", int(found["number"]))


def sealed_of(layers: Sequence[Layer], names: Sequence[str]) -> dict[str, list[Layer]]:
    """The layers of every `nn.Sequential` in order: between any two of them a number has no tensors.

    A list in which a module has modules of its own may be anything.
    """
    modules = {name.rpartition(".")[0] for name in names}
    lists: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.spot[1] >= 0:
            lists.setdefault(layer.spot[0], []).append(layer)
    found = {}
    for name, its in lists.items():
        begin = f"{name}." if name else ""
        inside = {module[len(begin) :] for module in modules if module.startswith(begin)}
        taken = {int(part) for part in inside if part.isdecimal()}
        its.sort(key=lambda layer: layer.spot[1])
        gaps = (any(k not in taken for k in range(a.spot[1] + 1, b.spot[1])) for a, b in pairwise(its))
        if len(its) > 1 and len(taken) == len(inside) and all(gaps):
            found[name] = its
    return found


def factor_of(one: Layer, other: Layer, sure: bool, known: bool = False) -> int | None:
    """How many entries each unit of `one` has where `other` takes it; -n: of n that it has; None: no fit.

    Where nobody is `sure`, only squares and cubes are taken for flattened planes and volumes, since other
    quotients may be chance. Nothing is unfolded to planes but inside a Sequential, where the order is
    `known`: anything fits before a single channel.
    """
    if one.out == other.into:
        return 1
    if one.kernel and not other.kernel and other.into % one.out == 0:
        factor, space, sign = other.into // one.out, len(one.kernel), 1
    elif known and other.kernel and not one.kernel and one.out % other.into == 0:
        factor, space, sign = one.out // other.into, len(other.kernel), -1
    else:
        return None
    even = space > 1 and round(factor ** (1 / space)) ** space == factor
    return sign * factor if sure or even else None


def in_order(
    layers: Sequence[Layer], sealed: Mapping[str, list[Layer]], names: Sequence[str], plain: bool
) -> tuple[list[Layer], tuple[str, ...]]:
    """All layers, each fitting behind the one before, and what was taken on trust of their order.

    Raises NoChain where no order fits, or several do.
    """
    trusted: tuple[str, ...] = ()
    for its in sealed.values():
        for one, other in pairwise(its):
            if factor_of(one, other, sure=True, known=True) is None:
                raise NoChain(f"{other.name}  takes {other.into}, and {one.name} before it gives {one.out}")
    within = {layer.name for its in sealed.values() for layer in its}
    pieces = [*sealed.values(), *([layer] for layer in layers if layer.name not in within)]
    orders = _orders(pieces, plain)
    if not orders:
        raise NoChain("in no order of its layers does each take what the one before gives")
    if (
        len(orders) > 1 and plain and list(names) != sorted(names)
    ):  # else their order in the file says nothing
        place = {name: k for k, name in enumerate(names)}
        pieces.sort(key=lambda piece: place[f"{piece[0].name}.weight"])
        if pieces in _orders(pieces, plain, most=1):
            orders = [pieces]
            shown = " → ".join(piece[0].name for piece in pieces)
            trusted = (f"in the order of the file, one of several that fit: {shown}",)
    if len(orders) > 1:
        shown = "; ".join(" → ".join(piece[0].name for piece in order) for order in orders)
        raise NoChain(f"several orders of its layers fit: {shown}", asks=not plain)
    return [layer for piece in orders[0] for layer in piece], trusted


def _orders(pieces: Sequence[list[Layer]], plain: bool, most: int = 2) -> list[list[list[Layer]]]:
    """Up to `most` orders in which all fit, by a search in depth, in the order of `pieces` first.

    Of a `plain` chain those with names that differ in numbers alone are in the order of these.
    """
    every = range(len(pieces))
    behind = {
        k: [j for j in every if factor_of(pieces[k][-1], pieces[j][0], plain) is not None] for k in every
    }
    stems = [re.sub("[0-9]+", "0", piece[0].name) for piece in pieces]
    keys = [natural(piece[0].name) for piece in pieces]
    first = {
        k: {j for j in every if plain and stems[j] == stems[k] and keys[j] < keys[k]} for k in every
    }  # that have to come before
    found: list[list[list[Layer]]] = []
    waiting = [[k] for k in reversed(every) if not first[k]]
    for _ in range(TRIES):
        if not waiting:
            return found
        order = waiting.pop()
        if len(order) == len(pieces):
            found.append([pieces[k] for k in order])
            if len(found) == most:
                return found
        waiting += [
            [*order, k] for k in reversed(behind[order[-1]]) if k not in order and first[k] <= {*order}
        ]
    raise NoChain("more orders of its layers may fit than are tried")
