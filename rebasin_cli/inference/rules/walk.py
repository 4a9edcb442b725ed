"""The state of one walk through a graph: values with their axes, and the equations so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ...graph.nodes import name_of
from ...graph.tracing import line_of
from ...proof import stale
from ..axes.axes import Axes, Expr, Fixed, Var, factors, product
from ..axes.orders import NONE, Parents
from ..axes.stack import Stack
from ..axes.units import Units

INPUT, OUTPUT = "it is the network's input", "it is the network's output"
WRITTEN = "the network writes into it"
TABLE = "it meets a table of constants"
KEPT = "it meets {}, which the network computed in an earlier call and keeps"
UNUSED = "not seen by any kept output"
MAY_READ = "values decide whether {} reads such units, and on these inputs it does not run"
INSTEAD = "evaluation does not use it but {}, which the network computed in an earlier call and keeps"
INTEGERS = "it holds integers, which are counted or looked up by"
COMPLEX = "it holds complex numbers, which no method compares"
CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async")  # they change nothing
OVERLAP = "it shares memory with a tensor of another shape"


@dataclass(frozen=True)
class Value:
    """A tensor of the graph. Where its shape is not `known` before it runs, `axes` say nothing.

    All entries of a `uniform` one are equal, so whoever reads it may permute it in a way of its own.
    Where it is a `stack` of pieces (see `stacks`), `axes` tell no more than the shape.
    """

    axes: Axes
    dtype: torch.dtype | None = None
    uniform: bool = False
    stack: Stack | None = None
    role: str = ""  # of numbers: what they say of the units `names` (see `routing`)
    names: Expr | None = None
    known: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def named(self) -> Expr:
        """The units that its numbers name."""
        if self.names is None:
            raise LookupError("its numbers name no units")
        return self.names


@dataclass(frozen=True)
class Shifted:
    """Units `before` and `after` a roll `by` so many places: tied where somebody needs to know."""

    before: Expr
    after: Expr
    by: int
    why: str


@dataclass(frozen=True)
class Picked:
    """An `order`, which data decide, of some of the units `names`: one for each place along `rows`."""

    order: Expr
    names: Expr
    rows: Parents
    told: str


class Walk:
    """The state of one walk: the equations so far, the tensors' axes, and where we are."""

    def __init__(self, module: nn.Module, whole: bool = False):
        self.whole = whole  # complex tensors move, too
        self.units = Units()
        self.tensors: dict[str, Axes] = {}  # every tensor of the state dict
        self.used: list[str] = []  # in the order of their first use
        self.hints: list[tuple[Expr, str]] = []  # what somebody might call these units
        self.constants: dict[fx.Node, torch.Tensor | None] = {}  # tables and numbers that no state dict has
        self.merged: dict[Var, tuple[int, int]] = {}  # how many orders it could have, and has as written
        self.shifted: list[Shifted] = []
        self.picked: list[Picked] = []
        self.here: fx.Node | None = None  # the operation that is looked at, while the walk goes on
        self.kept = stale.names(module)
        self.stale: list[str] = []  # of those, what was computed in an earlier call and is read
        self.values: dict[fx.Node, Any] = {}  # what every operation returns: a Value, a list of them, or None
        self._tie(module)

    @property
    def node(self) -> fx.Node:
        """The operation whose rule is at work."""
        if self.here is None:
            raise LookupError("no operation is looked at")
        return self.here

    @property
    def operation(self) -> str:
        """Its name, without the overload."""
        return name_of(self.node)

    def _tie(self, module: nn.Module) -> None:
        """One set of axes for every tensor, however many names it has."""
        known: dict[Any, Axes] = {}
        storages: dict[Any, set[Any]] = {}
        state = module.state_dict(keep_vars=True)
        for name, tensor in state.items():
            key, storage = _identity(tensor)
            if key not in known:
                known[key] = self._axes(tensor.shape)
            self.tensors[name] = known[key]
            storages.setdefault(storage, set()).add(key)
            if not tensor.is_floating_point() and not (self.whole and tensor.is_complex()):
                self.freeze(self.tensors[name], COMPLEX if tensor.is_complex() else INTEGERS)
        for name, tensor in state.items():
            if len(storages[_identity(tensor)[1]]) > 1:
                self.freeze(self.tensors[name], OVERLAP)

    def _axes(self, shape: Sequence[int]) -> Axes:
        """Each in an order of its own for each position along those before, until somebody knows better."""
        axes: list[Expr] = []
        for size in shape:
            axes.append(self.units.new(size, axes))
        return tuple(axes)

    def rule(self, target: Any, name: str) -> Any:
        """A rule of its own for an operation, where a walk of another kind has one."""
        return None

    def why(self, told: str) -> str:
        """A reason with the operation and its line."""
        line = line_of(self.here) if told and self.here is not None else ""
        return f"{told} ({line})" if line else told

    def unify(self, a: Expr, b: Expr, along: Parents = NONE) -> Expr:
        told = self.why("it is joined with units that are grouped differently")
        return self.units.unify(a, b, told, along)

    def contract(self, left: Expr, right: Expr, along: Parents = NONE) -> None:
        """What a product of matrices sums over is permuted alike."""
        self.unify(left, right, along)

    def groups(self, groups: Expr, size: int) -> Expr:
        """An axis of groups, each of so many units in an order of their own."""
        channels = self.units.new(size, [groups])
        self.hint(groups, "groups")
        self.hint(channels, "channels")
        return product([groups, channels])

    def freeze(self, axes: Axes | Expr, told: str) -> tuple[Fixed, ...]:
        axes = axes if isinstance(axes, tuple) else (axes,)
        told = self.why(told)
        return tuple(self.units.freeze(axis, told) for axis in axes)

    def hint(self, axis: Expr, name: str) -> None:
        self.hints.append((axis, name))

    def call(self, heads: Axes, summed: Expr, columns: Expr) -> None:
        """What people call these where each of several heads has its own product of matrices."""
        groups = [factors(self.units.resolve(axis)) for axis in heads]
        named = [pair for found in groups for pair in zip(found, ("heads", "queries"), strict=False)]
        for axis, name in [*named, (summed, "dim"), (columns, "value")]:
            self.hint(axis, name)


def _identity(tensor: torch.Tensor) -> tuple[Any, Any]:
    """What is equal for one tensor under two names, and for two that share memory."""
    if tensor.device.type == "meta" or not tensor.numel():
        return id(tensor), id(tensor)
    storage = tensor.untyped_storage().data_ptr()
    return (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()), storage
