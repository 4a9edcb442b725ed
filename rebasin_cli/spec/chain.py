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
from .fits import fit
from .layers import (
    STATISTICS,
    Layer,
    NoChain,
    Norm,
    factor_of,
    flipped,
    in_order,
    modules_of,
    sealed_of,
    spot_of,
)
from .parser import parse
from .patterns import natural
from .spec import FittedSpec

NAME = "chain"  # what a user types for it

_WORD = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)


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
    """The spec of a chain with these tensors, fitted, and `unproven` with what was taken for given.

    `plain`: its owner says that it is one, with no connection around a layer.

    Raises NoChain, with a sentence for all that has two readings or none.
    """
    layers, norms = modules_of(shapes)
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    refused: list[NoChain] = []
    for one in (layers, flipped(layers)):
        try:
            if one:
                text, taken, before = _spec(one, norms, list(shapes), plain)
                found[text] = taken, before
        except NoChain as why:
            refused.append(why)
    if not found:
        raise refused[0]
    if len(found) > 1:
        raise NoChain("weights of convolutions without biases may have inputs or outputs first")
    ((text, (taken, before)),) = found.items()
    fitted = fit(parse(text, name=NAME, source="the chain that the shapes tell"), shapes)
    said = " and --spec chain" if plain else ""
    assumed = (f"read off shapes{said}", *taken)
    before = parse(before, name=NAME).digest
    return replace(fitted, spec=replace(fitted.spec, unproven=", ".join(assumed), before=before))


def _spec(
    layers: Sequence[Layer], norms: Sequence[Norm], names: Sequence[str], plain: bool
) -> tuple[str, tuple[str, ...], str]:
    """A spec's text, and what was taken for given: an order, what is flattened. Raises NoChain.

    The last is the text with its lines as the file has its tensors, as it was once.

    Of one chain it is the same text, in whatever order a file has its tensors: its digest is the spec's.
    """
    sealed = sealed_of(layers, names)
    layers, trusted = in_order(layers, sealed, names, plain)
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
    of_norms: dict[str, str] = {}
    for norm in norms:
        at = find(norm)
        if at.hidden and at.channels and norm.grouped:
            raise NoChain(f"{norm.name}  may be a GroupNorm, whose channels do not leave their groups")
        of_norms |= {
            f"{norm.name}.{leaf}": at.axes[norm.size] if shape else "" for leaf, shape in norm.leaves.items()
        }
    axes |= {name: of_norms[name] for name in sorted(of_norms, key=natural)}
    flattened = tuple(
        f"{place.told} flattened, channels first: {text}"
        for place in places
        for text in place.axes.values()
        if text.startswith("(")
    )
    taken = (*trusted, *flattened)
    there = frozenset(names)
    text = _text({name: text for name, text in axes.items() if name in there}, taken)
    return text, taken, _text({name: axes[name] for name in names}, taken)


def _places(layers: Sequence[Layer], sealed: Mapping[str, list[Layer]], plain: bool) -> list[Place]:
    """Before the first layer, between any two, behind the last."""
    of = {layer.name: name for name, its in sealed.items() for layer in its}
    named = all(_WORD.fullmatch(layer.name) for layer in layers)
    found = [Place({layers[0].into: "."}, "at the inputs", hidden=False)]
    for k, (one, other) in enumerate(pairwise(layers)):
        word = one.name if named else f"h{k}"
        inside = of.get(one.name) if of.get(one.name) == of.get(other.name) else None
        known = inside is not None
        factor = factor_of(one, other, plain or known, known) or 1
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
        inside, number = spot_of(norm.name)
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
