"""Queries and keys under rotary positions: pairs of units that may be multiplied by a complex number each.

Positions turn each pair by an angle of its own, so that its units have no order, and to all that follows
units they stay where they are. What commutes with turning is multiplying: queries by a number, keys by its
inverse's conjugate. Which units make a pair is not read off operations, of which there are many forms, but
tried: what lies between a linear layer and its attention is run, and asked which of the layer's rows each
unit of a head depends on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind

from ... import groups
from ...graph.interpreter import Run, given
from ...graph.nodes import operand, operation
from ...graph.program import Program
from ...graph.tracing import needed_for
from ...groups import planes
from .sides import Linear, Sides

WHY = "positions turn each pair by an angle of its own"
KEYS = {"attention": -1, "product": -2}  # by kind of operation: the axis of keys that has a head's units
GAINED = (
    "a norm with a gain for each unit comes before positions turn it: "
    "of a pair's angles only half turns keep both gains"
)
NORMED = "a norm comes before positions turn it: pairs could take angles without scales, which no spec says"


@dataclass(frozen=True)
class Rows:
    """`size` rows of each head, side by side from its `starts` on, of these tensors' axes.

    The first of a head, as many as are `turned`, are pairs. Between two heads others' rows may lie: those of
    keys and values, where one layer makes all three. `normed` says why pairs stay that a norm divides by
    their length first.
    """

    places: tuple[tuple[str, int], ...]
    starts: tuple[int, ...]
    size: int
    turned: int
    kind: str
    normed: str = ""

    @property
    def heads(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class Planes:
    """The pairs of one attention: what gives its queries, and its keys, of as many heads or fewer."""

    query: Rows
    key: Rows

    @property
    def kind(self) -> str:
        return self.key.kind


def find(walk: Sides, module: nn.Module, program: Program) -> tuple[list[Planes], list[Rows]]:
    """The pairs of every attention whose queries and keys are turned, and rows whose pairs stay for a norm.

    Others, and all forms that are not seen through (units of a head that lie apart), are left out.
    """
    runs = _Runs(walk, module, program)
    found, normed = [], []
    for node in program.graph.nodes:
        if (keys := KEYS.get(operation(node).kind)) is None:
            continue
        try:
            query, key = runs.rows(operand(node, 0), -1), runs.rows(operand(node, 1), keys)
        except Exception:  # what cannot be run is not understood
            continue
        if query is None or key is None:
            continue
        if query.normed or key.normed:
            normed += [rows for rows in (query, key) if rows.normed]
            continue
        alike = (query.kind, query.size, query.turned) == (key.kind, key.size, key.turned)
        if alike and query.heads % key.heads == 0:
            found.append(Planes(query, key))
    return _apart(found), normed


def _apart(found: list[Planes]) -> list[Planes]:
    """Those whose rows no other attention uses."""
    used = Counter((rows.places[0], rows.starts) for planes in found for rows in (planes.query, planes.key))
    return [p for p in found if all(used[rows.places[0], rows.starts] == 1 for rows in (p.query, p.key))]


class _Runs:
    """Parts of a graph, run on numbers."""

    def __init__(self, walk: Sides, module: nn.Module, program: Program):
        inputs = program.inputs
        self.parameters = {spec.arg.name for spec in inputs if spec.kind is InputKind.PARAMETER}
        self.layers: dict[fx.Node, Linear] = {layer.node: layer for layer in walk.layers}
        state = {**dict(module.named_parameters()), **module.state_dict(keep_vars=True)}
        values = given(program, state, program.examples)
        self.values = {n: v.detach().cpu() if isinstance(v, torch.Tensor) else v for n, v in values}
        self.program = program
        self.after: set[fx.Node] = set()  # what a linear layer's output goes into
        for node in program.graph.nodes:
            if node in self.layers or any(other in self.after for other in node.all_input_nodes):
                self.after.add(node)

    def rows(self, node: fx.Node, axis: int) -> Rows | None:
        """Of queries or keys, a head's units along `axis`; None where they are not turned in pairs."""
        cone, layers = self._cone(node)
        if len(layers) != 1 or any(n.op != "call_function" for n in cone):
            return None
        (layer,) = layers
        made = self.layers[layer]
        if made.weight is None or made.axis > 1 or len(node.meta["val"].shape) != 4:
            return None
        x = torch.zeros(layer.meta["val"].shape, dtype=layer.meta["val"].dtype, requires_grad=True)
        with torch.enable_grad():
            y = self._run(node, {layer: x}).movedim(axis, -1)
            depends = [self._touched(y, x, unit) for unit in range(y.shape[-1])]
        places = ((made.weight, 1 - made.axis), *(((made.bias, 0),) if made.bias else ()))
        rows, power = _read(depends, places), self._power(node, layer)
        if rows is None or power is None:
            return None
        return rows if power else replace(rows, normed=GAINED if self._gains(cone) else NORMED)

    def _cone(self, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
        """What a value is made by from linear layers, in their order, and these."""
        cone, layers, seen, left = [], [], {node}, [node]
        while left:
            here = left.pop()
            if here in self.layers:
                layers.append(here)
                continue
            if here not in self.after:
                continue
            cone.append(here)
            for other in here.all_input_nodes:
                if other not in seen:
                    seen.add(other)
                    left.append(other)
        return cone, layers

    def _gains(self, cone: list[fx.Node]) -> bool:
        """Whether a parameter goes into it, as it is or computed with."""
        seen = set(cone)
        left = [other for node in cone for other in node.all_input_nodes if other not in self.after]
        while left:
            node = left.pop()
            if node.name in self.parameters:
                return True
            seen.add(node)
            left += [other for other in node.all_input_nodes if other not in seen]
        return False

    def _run(self, node: fx.Node, instead: dict[fx.Node, Any]) -> Any:
        """The value, with these instead of a linear layer's output; what follows from that is not kept."""
        run = Run(self.program, {**self.values, **instead}.items())
        needed = needed_for([node], run.env)
        for made, value in run.each(n for n in self.program.graph.nodes if n in needed):
            if made not in self.after:
                self.values[made] = value
        return run.env[node]

    @staticmethod
    def _touched(y: torch.Tensor, x: torch.Tensor, unit: int) -> list[int]:
        """The rows that this unit depends on, of any head, at the last position."""
        (slope,) = torch.autograd.grad(y[0, :, -1, unit].sum(), x, retain_graph=True)
        return torch.nonzero(slope.flatten(0, -2).abs().amax(0)).flatten().tolist()

    def _power(self, node: fx.Node, layer: fx.Node) -> int | None:
        """1 where nothing but products with constants lies between, 0 where a norm does; None of others."""
        x = torch.linspace(-1, 2, layer.meta["val"].numel(), dtype=layer.meta["val"].dtype)
        x = x.view(layer.meta["val"].shape)
        with torch.no_grad():
            one, three = (self._run(node, {layer: factor * x}) for factor in (1, 3))
        if torch.allclose(3 * one, three, rtol=1e-4, atol=1e-5):
            return 1
        return 0 if torch.allclose(one, three, rtol=1e-2, atol=1e-2) else None  # up to the norm's epsilon


def _read(depends: list[list[int]], places: tuple[tuple[str, int], ...]) -> Rows | None:
    """Rows from what each unit of a head depends on."""
    size, every = len(depends), sorted({row for rows in depends for row in rows})
    starts = tuple(every[::size])
    if not starts or every != [start + unit for start in starts for unit in range(size)]:
        return None
    turned = sum(len(rows) > len(starts) for rows in depends)
    for kind in reversed(groups.names()) if turned and turned % 2 == 0 else ():  # of two units both are pairs
        if not isinstance(its := groups.find(kind), planes.Planes):
            continue
        real, imaginary = its.units(turned)
        partner = torch.arange(size)
        partner[real], partner[imaginary] = imaginary, real
        wanted = [
            sorted({start + k for start in starts for k in {unit, int(partner[unit])}})
            for unit in range(size)
        ]
        if depends == wanted:
            return Rows(places, starts, size, turned, kind)
    return None
