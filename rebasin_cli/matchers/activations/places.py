"""Which values of the executed graph show a word's units, and on which axis.

The network is exported and followed as for inference, so every value has axes; the spec's axes and the
graph's are made one, and a value shows the words that its axes then name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from ...graph.program import Program
from ...inference.axes.axes import Axes, Expr, Var, product, total, variables
from ...inference.axes.axes import Fixed as Still
from ...inference.axes.axes import Product as Factors
from ...inference.axes.axes import Sum as Segments
from ...inference.rules.rules import broadcast
from ...inference.rules.walk import Value, Walk
from ...spec.atoms import Atom, atoms
from ...spec.notation import Axis, Fixed, Product, Sum, Word, factors_of, starred_of
from ...spec.spec import FittedSpec


@dataclass(frozen=True)
class Place:
    """One part of a node's value, with the axis of one word."""

    node: fx.Node
    word: str
    atom: Atom

    def units(self, value: torch.Tensor) -> torch.Tensor:
        """(n, samples): a row a unit; batch and positions are samples.

        Axes of other words are averaged over: what stands where on them differs between models.
        """
        view = self.atom.view(value)
        at = self.atom.words.index(self.word)
        others = [d for d, word in enumerate(self.atom.words) if word is not None and d != at]
        view = view.movedim(at, 0)
        others = [d + (d < at) for d in others]
        return (view.mean(others) if others else view).flatten(1)


@dataclass(frozen=True)
class Graph:
    """A followed graph, its values named by the words of the spec."""

    fitted: FittedSpec
    program: Program
    walk: Walk

    @cached_property
    def own(self) -> dict[str, Expr]:
        """The spec's words as axes of the walk, once both are one."""
        walk, within = self.walk, self.fitted.within
        known: dict[str, Expr] = {}
        for word in sorted(self.fitted.words, key=lambda word: word in within):
            block = within.get(word)
            outer = [known[block.word]] if block and block.word else []
            known[word] = walk.units.new(self.fitted.sizes[word], outer)
        for name, axes in self.fitted.tensors.items():
            if name in walk.tensors:
                broadcast(walk, [walk.tensors[name], tuple(_expression(axis, known) for axis in axes)])
        return {word: walk.units.resolve(axis) for word, axis in known.items()}

    @cached_property
    def names(self) -> dict[Var, str]:
        found: dict[Var, str] = {}
        for word, axis in self.own.items():
            if isinstance(axis, Var):
                found.setdefault(axis, word)
        return found

    @cached_property
    def shown(self) -> dict[fx.Node, frozenset[str]]:
        """The words on the axes of every value."""
        names, resolve = self.names, self.walk.units.resolve
        return {
            node: frozenset(
                names[var]
                for axes in _axes_in(value)
                for axis in axes
                for var in variables(resolve(axis))
                if var in names
            )
            for node, value in self.walk.values.items()
        }

    @cached_property
    def of_data(self) -> set[fx.Node]:
        """Values that depend on the network's inputs."""
        inputs = {
            spec.arg.name
            for spec in self.program.inputs
            if spec.kind == InputKind.USER_INPUT and hasattr(spec.arg, "name")
        }
        found: set[fx.Node] = set()
        for node in self.program.graph.nodes:
            if node.name in inputs if node.op == "placeholder" else found & set(node.all_input_nodes):
                found.add(node)
        return found

    def sources(self, node: fx.Node, word: str) -> list[fx.Node]:
        """The data that a node reads with this word's units on an axis."""
        return [
            n
            for n in node.all_input_nodes
            if n in self.of_data and word in self.shown.get(n, ()) and _floats(n)
        ]

    def place(self, node: fx.Node, word: str) -> Place | None:
        """The first part of the value that shows all units of the word on one axis; None: there is none."""
        return next(iter(self.places(node, word)), None)

    def places(self, node: fx.Node, word: str) -> list[Place]:
        """The parts of a value that show all units of a word: one a segment that has it."""
        value = self.walk.values.get(node)
        if not isinstance(value, Value) or not value.known or value.stack is not None:
            return []
        axes = tuple(self._axis(self.walk.units.resolve(axis)) for axis in value.axes)
        if not _complete(axes, self.fitted):
            return []
        whole = replace(self.fitted, tensors={node.name: axes}, statistics=frozenset())
        found, shape = [], torch.empty(value.shape, device="meta")
        for atom in atoms(whole):
            if atom.words.count(word) == 1:
                size = atom.view(shape).shape[atom.words.index(word)]
                found += [Place(node, word, atom)] * (size == self.fitted.words[word])
        return found

    def _axis(self, axis: Expr) -> Axis:
        if isinstance(axis, Var) and axis in self.names:
            word = self.names[axis]
            return Word(word, each=word in self.fitted.within)
        if isinstance(axis, Factors):
            return Product(tuple(map(self._axis, axis.factors)))
        if isinstance(axis, Segments):
            return Sum(tuple(map(self._axis, axis.terms)))
        return Fixed(axis.size)

    def lost(self, word: str) -> str:
        """Why a word has no site."""
        axis = self.own[word]
        if not isinstance(axis, Var):
            return "is held in place by the graph, as far as it is understood"
        if self.names[axis] != word:
            return f'is "{self.names[axis]}" by the graph: both have one order'
        return "is read by nothing that depends on the inputs"


def _floats(node: fx.Node) -> bool:
    """Whether its value, or the first of several, is of real numbers: masks say nothing of units."""
    value = node.meta.get("val")
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _axes_in(value: Any) -> Iterator[Axes]:
    if isinstance(value, Value):
        if value.known and value.stack is None:
            yield value.axes
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _axes_in(item)


def _expression(axis: Axis, known: Mapping[str, Expr]) -> Expr:
    """A spec's axis as one of the walk."""
    if isinstance(axis, Word):
        return known[axis.name]
    if isinstance(axis, Product):
        return product([_expression(factor, known) for factor in axis.factors])
    if isinstance(axis, Sum):
        return total([_expression(term, known) for term in axis.terms])
    if isinstance(axis, Fixed) and axis.size is not None:
        return Still(axis.size, "the spec keeps it")
    raise LookupError("an axis of a fitted spec is a word, a number, a product or a sum")


def _complete(axes: tuple[Axis, ...], fitted: FittedSpec) -> bool:
    """Whether every starred word stands behind, or beside, what it lies within."""
    for k, axis in enumerate(axes):
        for word, outer in starred_of(axis):
            block = fitted.within[word]
            if block.word is None:
                if not isinstance(outer, Fixed):
                    return False
                continue
            around = Word(block.word)
            beside = [other for j, other in enumerate(axes) if j != k and around in factors_of(other)]
            if outer != around and (isinstance(outer, Word) or len(beside) != 1):
                return False
    return True
