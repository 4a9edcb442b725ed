"""The state of a second walk through a network's graph: how operations take units, beyond their order.

The first walk (`flow`) says which axes have the same units. Here every place of a parameter starts with
units of its own, cut as the first walk found; operations that take both sides alike (a sum, a view) make them
one class again, and others leave a relation between classes: a product of matrices sums over both, so that
one side gets the inverse; a norm, a gain or a product stands between what goes in and what comes out. What an
operation allows beyond an order is a flag of the class: nothing, signs, positive scales, rotations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.export.graph_signature import InputKind

from ...graph.nodes import name_of
from ...graph.program import Program
from ...graph.tracing import line_of
from ..axes.axes import Axes, Expr, Var, rewritten, variables
from ..axes.orders import NONE, Parents
from ..rules.walk import Walk

# Flags: what an operation lets its units do beyond changing places
ORDER, ODD, SCALE = "order", "odd", "scale"  # nothing, signs, positive scales
ONES, NORM = "ones", "norm"  # rotations that keep the vector of ones; rotations
SEEN = "seen"  # nothing less, but the component along the ones is read: it may not be folded away


@dataclass(frozen=True)
class Relation:
    """`kind`: "contract", "mul" (x, y → z), "square" (x → z), "gain" and "norm" (x → z, by parameters)."""

    kind: str
    parts: tuple[Expr, ...]
    node: fx.Node
    weight: str | None = None
    bias: str | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name in (self.weight, self.bias) if name)


@dataclass(frozen=True)
class Linear:
    """One use of a linear layer or convolution: what it reads, its weight and bias by name.

    `axis` of the weight is what meets the units that are read.
    """

    node: fx.Node
    reads: Expr
    weight: str | None
    bias: str | None
    axis: int = 1


@dataclass(frozen=True)
class Attention:
    """One call of attention, as the classes of its keys and values."""

    node: fx.Node
    key: Expr
    value: Expr


class Sides(Walk):
    """The state of the second walk."""

    def __init__(self, module: nn.Module, program: Program, first: Walk):
        super().__init__(module)
        self.named = {
            spec.arg.name: spec.target
            for spec in program.inputs
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target is not None
        }
        self.relations: list[Relation] = []
        self.flags: list[tuple[Expr, str, str]] = []
        self.layers: list[Linear] = []
        self.attentions: list[Attention] = []
        known: dict[int, Axes] = {}  # tied tensors are one
        for name, axes in first.tensors.items():
            if id(axes) not in known:
                known[id(axes)] = tuple(self.copied(first.units.resolve(axis)) for axis in axes)
            self.tensors[name] = known[id(axes)]

    def copied(self, axis: Expr) -> Expr:
        """The same structure of new units."""
        return rewritten(self.units.resolve(axis), lambda var: self.units.new(var.size))

    def flag(self, axes: Axes | Expr, flag: str, told: str) -> None:
        """Note what an operation allows of the units of these axes."""
        line = line_of(self.here) if self.here is not None else ""
        for axis in axes if isinstance(axes, tuple) else (axes,):
            self.flags.append((axis, flag, f"{told} ({line})" if line else told))

    def relate(self, kind: str, *parts: Expr, weight: str | None = None, bias: str | None = None) -> None:
        self.relations.append(Relation(kind, parts, self.node, weight, bias))

    def parameter(self, node: Any) -> str | None:
        return self.named.get(node.name) if isinstance(node, fx.Node) else None

    def contract(self, left: Expr, right: Expr, along: Parents = NONE) -> None:
        """Rows of experts times their matrices: as any product, a relation."""
        self.relate("contract", left, right)
        self.matrix(left, self.node.args[1], -2)

    def matrix(self, reads: Expr, node: Any, axis: int, bias: str | None = None) -> None:
        """Note that a parameter's matrix reads these units, if it is one."""
        if (found := self.source(node, axis)) is not None:
            self.layers.append(Linear(self.node, reads, found[0], bias, found[1]))

    def source(self, node: Any, axis: int) -> tuple[str, int] | None:
        """The parameter that a node is, with its axes in another order perhaps, and which `axis` is there."""
        axis %= len(node.meta["val"].shape)
        while (parameter := self.parameter(node)) is None:
            name, given = name_of(node), node.args
            if name == "permute":
                axis = given[1][axis] % len(given[1])
            elif name in ("transpose", "t"):
                first, second = (d % len(node.meta["val"].shape) for d in (given[1:] or (0, 1)))
                axis = {first: second, second: first}.get(axis, axis)
            else:
                return None
            node = given[0]
        return parameter, axis


def pairs(walk: Sides, left: Expr, right: Expr) -> Iterator[tuple[Var, Var]] | None:
    """The units of two axes side by side; None where they are grouped differently."""
    left, right = walk.units.resolve(left), walk.units.resolve(right)
    ours, theirs = list(variables(left)), list(variables(right))
    if [v.size for v in ours] != [v.size for v in theirs]:
        return None
    return zip(ours, theirs, strict=True)
