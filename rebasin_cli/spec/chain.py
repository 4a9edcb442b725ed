"""A spec read off tensors alone: a chain of linear layers, convolutions and norms, one behind the other.

    fc1.weight  48×64        fc1.weight: "fc1 ."
    fc2.weight  32×48   →    fc2.weight: "fc2 fc1"
    out.weight  10×32        out.weight: ". fc2"

Shapes say what fits behind what, and no more. Right or refused: where they leave two readings there is none.
A skip connection adds units of one width to units of the same width and has no tensor, so a hidden width
that is there twice is two readings, unless what is between is sealed: the children of an `nn.Sequential` run
one behind the other, and numbers without tensors between its layers (activations) tell it from a list of
modules, which a network may join as it likes. Who knows that nothing is added says so: `--spec chain`; of
layers that are alike, numbers in their names and their order in the file then tell which comes first.

What no tensor shows is taken to be absent: a step that treats units differently, such as a local response
norm, or one that hands on what is inside a Sequential. So such a spec says of itself that it is not proven.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..types import Shapes
from .fitting import fit
from .naming import natural
from .parsing import parse
from .spec import FittedSpec

NAME = "chain"  # what a user types for it
MOST = 1_000  # layers
TRIES = 20_000  # steps of the search for an order of all of them
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

_NUMBERED = re.compile(r"(?:(?P<list>.+)\.)?(?P<number>[0-9]{1,6})")
_WORD = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)


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
        return _spot(self.name)


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


@dataclass(frozen=True)
class Place:
    """What a layer hands on, by its length: `h`, or `(h 16)` where it is flattened in between.

    `sealed` is the Sequential that it is inside of; `channels` of a convolution are among its lengths.
    """

    axes: Mapping[int, str]
    told: str
    hidden: bool = True
    sealed: str | None = None
    channels: bool = False


def read(shapes: Shapes, *, plain: bool = False) -> FittedSpec:
    """The spec of a chain with these tensors. `plain`: its owner says that it is one, with no connection
    around a layer.

    Raises NoChain.
    """
    layers, norms = _modules(shapes)
    found: dict[str, tuple[str, ...]] = {}
    refused: list[NoChain] = []
    for one in (layers, _flipped(layers)):
        try:
            if one:
                text, taken = _spec(one, norms, list(shapes), plain)
                found[text] = taken
        except NoChain as why:
            refused.append(why)
    if not found:
        raise refused[0]
    if len(found) > 1:
        raise NoChain("weights of convolutions without biases may have inputs or outputs first")
    (text,) = found
    fitted = fit(parse(text, name=NAME, source="the chain that the shapes tell"), shapes)
    said = " and --spec chain" if plain else ""
    assumed = (f"read off shapes{said}", *found[text])
    return replace(fitted, spec=replace(fitted.spec, unproven=", ".join(assumed)))


def _modules(shapes: Shapes) -> tuple[list[Layer], list[Norm]]:
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


def _flipped(layers: Sequence[Layer]) -> list[Layer]:
    """The same with transposed convolutions for those without biases, where these are not all square."""
    open_ = [one for one in layers if one.kernel and not one.bias]
    if all(one.into == one.out for one in open_):
        return []
    return [replace(o, into=o.out, out=o.into, flipped=True) if o in open_ else o for o in layers]


# ------------------------------------------------------------------------------- which comes behind which


def _spot(name: str) -> tuple[str, int]:
    found = _NUMBERED.fullmatch(name)
    return (name, -1) if found is None else (found["list"] or "", int(found["number"]))


def _sealed(layers: Sequence[Layer], names: Sequence[str]) -> dict[str, list[Layer]]:
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


def _factor(one: Layer, other: Layer, sure: bool, known: bool = False) -> int | None:
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


def _in_order(
    layers: Sequence[Layer], sealed: Mapping[str, list[Layer]], names: Sequence[str], plain: bool
) -> tuple[list[Layer], tuple[str, ...]]:
    """All layers, each fitting behind the one before, and what was taken on trust of their order.

    Raises NoChain where no order fits, or several do.
    """
    trusted: tuple[str, ...] = ()
    for its in sealed.values():
        for one, other in pairwise(its):
            if _factor(one, other, sure=True, known=True) is None:
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
    behind = {k: [j for j in every if _factor(pieces[k][-1], pieces[j][0], plain) is not None] for k in every}
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


# -------------------------------------------------------------------------------------------- what is said


def _spec(
    layers: Sequence[Layer], norms: Sequence[Norm], names: Sequence[str], plain: bool
) -> tuple[str, tuple[str, ...]]:
    """A spec's text, and what was taken for given: an order, what is flattened. Raises NoChain."""
    sealed = _sealed(layers, names)
    layers, trusted = _in_order(layers, sealed, names, plain)
    places = _places(layers, sealed, plain)
    if not plain:
        _check_alone(places)
    axes: dict[str, str] = {}
    for k, layer in enumerate(layers):
        into, out = places[k].axes[layer.into], places[k + 1].axes[layer.out]
        both = (into, out) if layer.flipped else (out, into)
        axes |= {
            f"{layer.name}.weight": " ".join((*both, *"." * len(layer.kernel))),
            f"{layer.name}.bias": out,
        }
    find = _Finder(layers, norms, places, sealed, names)
    for norm in norms:
        at = find(norm)
        if at.hidden and at.channels and norm.grouped:
            raise NoChain(f"{norm.name}  may be a GroupNorm, whose channels do not leave their groups")
        axes |= {
            f"{norm.name}.{leaf}": at.axes[norm.size] if shape else "" for leaf, shape in norm.leaves.items()
        }
    flattened = tuple(
        f"{place.told} flattened, channels first: {text}"
        for place in places
        for text in place.axes.values()
        if text.startswith("(")
    )
    taken = (*trusted, *flattened)
    return _text({name: axes[name] for name in names}, taken), taken


def _places(layers: Sequence[Layer], sealed: Mapping[str, list[Layer]], plain: bool) -> list[Place]:
    """Before the first layer, between any two, behind the last."""
    of = {layer.name: name for name, its in sealed.items() for layer in its}
    named = all(_WORD.fullmatch(layer.name) for layer in layers)
    found = [Place({layers[0].into: "."}, "at the inputs", hidden=False)]
    for k, (one, other) in enumerate(pairwise(layers)):
        word = one.name if named else f"h{k}"
        inside = of.get(one.name) if of.get(one.name) == of.get(other.name) else None
        known = inside is not None
        factor = _factor(one, other, plain or known, known) or 1
        axes = {one.out: word} if factor > 0 else {other.into: word}
        if factor != 1:
            axes[max(one.out, other.into)] = f"({word} {abs(factor)})"
        told = f"between {one.name} and {other.name}"
        found.append(Place(axes, told, sealed=inside, channels=bool(one.kernel or other.kernel)))
    return [*found, Place({layers[-1].out: "."}, "at the outputs", hidden=False)]


def _check_alone(places: Sequence[Place]) -> None:
    """Raise NoChain where a connection without tensors may add units to others of the same width."""
    open_ = [place for place in places if place.sealed is None]
    alike = [
        f"{width} units {one.told} and {other.told}: whether these are added to those, no shape tells"
        for k, one in enumerate(open_)
        for other in open_[k + 1 :]
        if one.hidden or other.hidden
        for width in sorted(one.axes.keys() & other.axes.keys())
    ]
    if alike:
        raise NoChain(*alike, asks=True)


class _Finder:
    """Where in the chain a norm is: by its size, else by its number or its place in the file."""

    def __init__(
        self,
        layers: Sequence[Layer],
        norms: Sequence[Norm],
        places: Sequence[Place],
        sealed: Collection[str],
        names: Sequence[str],
    ):
        self.places, self.sealed = places, sealed
        self.behind = {layer.name: places[k + 1] for k, layer in enumerate(layers)}
        self.before = {layer.name: places[k] for k, layer in enumerate(layers)}
        modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
        filed = list(names) != sorted(names)  # else their order says nothing
        self.preceding = dict(pairwise(reversed(modules))) if filed else {}
        self.lists: dict[str, list[Layer]] = {}
        for layer in layers:
            self.lists.setdefault(layer.spot[0], []).append(layer)
        self.numbered = {norm.name: self._numbered(norm) for norm in norms}
        sizes = {norm.name: norm.size for norm in norms}
        self.numbers_tell = all(  # and not of the layer behind, as where norms come first
            any(sizes[norm] in self.behind[layer].axes for layer in its)
            for norm, its in self.numbered.items()
            if its
        )

    def _numbered(self, norm: Norm) -> list[str]:
        numbers = re.findall("[0-9]+", norm.name)
        return [name for name in self.behind if numbers and re.findall("[0-9]+", name) == numbers]

    def __call__(self, norm: Norm) -> Place:
        """Raises NoChain."""
        inside, number = _spot(norm.name)
        fits: Callable[[Place], bool] = lambda place: norm.size in place.axes  # noqa: E731
        if number >= 0 and inside in self.lists:
            its = [layer for layer in self.lists[inside] if layer.spot[1] < number]
            at = self.behind[its[-1].name] if its else self.before[self.lists[inside][0].name]
            if fits(at):
                return at
            raise NoChain(f"{norm.name}  has {norm.size} units, which are not there {at.told}")
        found = [place for place in self.places if fits(place) and place.sealed is None]
        if len({place.axes[norm.size] for place in found}) == 1:
            return next((place for place in found if place.channels), found[0])
        said = (
            [self.behind[self.preceding[norm.name]]] if self.preceding.get(norm.name) in self.behind else []
        )
        if self.numbers_tell:
            said += [self.behind[layer] for layer in self.numbered[norm.name]]
        said = [place for place in said if place in found]
        if said and all(place is said[0] for place in said):
            return said[0]
        where = ", or ".join(place.told for place in found) or "nowhere in the chain"
        raise NoChain(f"{norm.name}  has {norm.size} units, which are {where}")


def _text(axes: Mapping[str, str], taken: Sequence[str]) -> str:
    lines: dict[str, list[str]] = {"tensors": [], "statistics": []}
    for name, text in axes.items():
        section = "statistics" if name.rpartition(".")[2] in STATISTICS else "tensors"
        lines[section].append(f'  {json.dumps(name, ensure_ascii=False)}: "{text}"')
    description = "; ".join(("a plain chain, read off shapes and not proven", *taken))
    return "\n".join(
        [
            "schema: 1",
            f"description: {json.dumps(description, ensure_ascii=False)}",
            *(row for section, its in lines.items() if its for row in (f"{section}:", *its)),
            "",
        ]
    )
