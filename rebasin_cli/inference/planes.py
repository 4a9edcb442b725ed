"""Queries and keys under rotary positions: pairs of units that may be multiplied by a complex number each.

Positions turn each pair by an angle of its own, so that its units have no order, and to all that follows
units they stay where they are. What commutes with turning is multiplying: queries by a number, keys by its
inverse's conjugate. Which units make a pair is not read off operations, of which there are many forms, but
tried: what lies between a linear layer and its attention is run, and asked which of the layer's rows each
unit of a head depends on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from ..spec.groups import PLANES
from .axes import Axes, Expr, Fixed, Product, Sum, Var, variables
from .sides import Linear, Sides

WHY = "positions turn each pair by an angle of its own"
ATTENTION = {"scaled_dot_product_attention": -1, "matmul": -2}  # the axis of keys that has a head's units
FIRST = 10**9  # the number of a variable that no walk has made, below 0


@dataclass(frozen=True)
class Rows:
    """`size` rows of each of `heads`, side by side from `start` on, of these tensors' axes.

    The first of a head, as many as are `turned`, are pairs.
    """

    places: tuple[tuple[str, int], ...]
    start: int
    heads: int
    size: int
    turned: int
    kind: str


@dataclass(frozen=True)
class Planes:
    """The pairs of one attention: what gives its queries, and its keys, of as many heads or fewer."""

    query: Rows
    key: Rows

    @property
    def kind(self) -> str:
        return self.key.kind


def find(walk: Sides, module: nn.Module, program: torch.export.ExportedProgram) -> list[Planes]:
    """The pairs of every attention whose queries and keys are turned; others, and all forms that are not
    seen through (rows that lie apart, norms in between), are left out.
    """
    runs = _Runs(walk, module, program)
    found = []
    for node in program.graph.nodes:
        if (called := getattr(node.target, "_opname", "")) not in ATTENTION:
            continue
        try:
            query, key = runs.rows(node.args[0], -1), runs.rows(node.args[1], ATTENTION[called])
        except Exception:  # what cannot be run is not understood
            continue
        if query is None or key is None:
            continue
        alike = (query.kind, query.size, query.turned) == (key.kind, key.size, key.turned)
        if alike and query.heads % key.heads == 0:
            found.append(Planes(query, key))
    return _apart(found)


def _apart(found: list[Planes]) -> list[Planes]:
    """Those whose rows no other attention uses."""
    used = Counter((rows.places[0], rows.start) for planes in found for rows in (planes.query, planes.key))
    return [p for p in found if all(used[rows.places[0], rows.start] == 1 for rows in (p.query, p.key))]


class _Runs:
    """Parts of a graph, run on numbers."""

    def __init__(self, walk: Sides, module: nn.Module, program: torch.export.ExportedProgram):
        self.layers: dict[fx.Node, Linear] = {layer.node: layer for layer in walk.layers}
        self.given = dict(_given(module, program))
        self.values: dict[fx.Node, Any] = {}
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
        if not self._linear(node, layer):
            return None
        places = ((made.weight, 1 - made.axis), *(((made.bias, 0),) if made.bias else ()))
        return _read(depends, places)

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

    def _run(self, node: fx.Node, given: dict[fx.Node, Any]) -> Any:
        """The node's value; `given` has the linear layer's output, and takes what follows from it."""
        values = given if node in self.after else self.values
        if node in values:
            return values[node]
        if node.op == "placeholder":
            found = self.given[node.name]
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self._run(n, given))
            found = node.target(*args, **kwargs)
        values[node] = found
        return found

    @staticmethod
    def _touched(y: torch.Tensor, x: torch.Tensor, unit: int) -> list[int]:
        """The rows that this unit depends on, of any head, at the last position."""
        (slope,) = torch.autograd.grad(y[0, :, -1, unit].sum(), x, retain_graph=True)
        return torch.nonzero(slope.flatten(0, -2).abs().amax(0)).flatten().tolist()

    def _linear(self, node: fx.Node, layer: fx.Node) -> bool:
        """Whether nothing but products with constants lies between: twice as much gives twice as much."""
        x = torch.linspace(-1, 2, layer.meta["val"].numel(), dtype=layer.meta["val"].dtype)
        x = x.view(layer.meta["val"].shape)
        with torch.no_grad():
            one, two = (self._run(node, {layer: factor * x}) for factor in (1, 3))
        return bool(torch.allclose(3 * one, two, rtol=1e-4, atol=1e-5))


def _given(module: nn.Module, program: torch.export.ExportedProgram) -> Iterator[tuple[str, Any]]:
    """The graph's inputs by name, those of the example among them."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state |= module.state_dict(keep_vars=True) | dict(program.constants)
    args, kwargs = program.example_inputs or ((), {})
    users = iter(tree_leaves((args, kwargs)))
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            yield getattr(spec.arg, "name", ""), next(users, None)
        elif hasattr(spec.arg, "name"):
            value = state.get(spec.target)
            yield spec.arg.name, value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _read(depends: list[list[int]], places: tuple[tuple[str, int], ...]) -> Rows | None:
    """Rows from what each unit of a head depends on."""
    size, every = len(depends), sorted({row for rows in depends for row in rows})
    heads, rest = divmod(len(every), size)
    if rest or not heads or every != list(range(every[0], every[0] + heads * size)):
        return None
    turned = sum(len(rows) > heads for rows in depends)
    for kind in PLANES if turned and turned % 2 == 0 else ():
        partner = torch.arange(turned).view((2, -1) if kind == "halves" else (-1, 2))
        partner = partner.flip(0 if kind == "halves" else 1).flatten().tolist() + list(range(turned, size))
        wanted = [
            sorted({every[0] + head * size + k for head in range(heads) for k in {unit, partner[unit]}})
            for unit in range(size)
        ]
        if depends == wanted:
            return Rows(places, every[0], heads, size, turned, kind)
    return None


# ----------------------------------------------------------------------------------------------- in a spec


def write(
    tensors: Mapping[str, Axes], written: Mapping[Var, str], every: Sequence[Planes], but: Collection[str]
) -> tuple[dict[str, Axes], dict[Var, str], dict[str, Planes]]:
    """Axes with a word for the pairs of each attention, how their variables are written, and the words.

    Left out are words of `but`, and what these axes cannot say.
    """
    tensors, written, words = dict(tensors), dict(written), {}
    for number, planes in enumerate(every):
        sides = [Var(-FIRST - 2 * number - k, planes.key.turned) for k in (0, 1)]
        changed: dict[str, Axes] = {}
        terms = []
        for rows, unit in zip((planes.query, planes.key), sides, strict=True):
            copies = (planes.key.heads, rows.heads // planes.key.heads)
            for name, axis in rows.places:
                axes = list(changed.get(name, tensors[name]))
                axes[axis], term = _placed(axes[axis], rows, unit, copies)
                changed[name] = tuple(axes)
                terms.append(term)
        if None in terms:
            continue
        heads = next(variables(terms[-1]))
        stem = written[heads] if heads != sides[1] else planes.key.places[0][0].rpartition(".")[0]
        word = ".".join((*stem.split(".")[:-1], "dim"))
        word += "_qk" * (word in {text.strip("|").rstrip("*~") for text in written.values()})
        star = "*" * isinstance(terms[-1], Product)
        if word not in but:
            written |= {sides[0]: f"{word}{star}", sides[1]: f"{word}~{star}"}
            tensors |= changed
            words[word] = planes
    return tensors, written, words


def _placed(axis: Expr, rows: Rows, unit: Var, copies: tuple[int, int]) -> tuple[Expr, Expr | None]:
    """The axis with its segment of these rows written anew, and the segment; None where that cannot be."""
    terms = list(axis.terms) if isinstance(axis, Sum) else [axis]
    start = 0
    for k, term in enumerate(terms):
        if start == rows.start and term.size == rows.heads * rows.size:
            new = _with(term, rows, unit, copies)
            terms[k] = new or term
            return (Sum(tuple(terms)) if len(terms) > 1 else terms[0]), new
        start += term.size
    return axis, None


def _with(term: Expr, rows: Rows, unit: Var, copies: tuple[int, int]) -> Expr | None:
    """The pairs as last factor. Where heads stay, the keys' come first, then the queries of each."""
    *before, last = term.factors if isinstance(term, Product) else (term,)
    if rows.turned < rows.size:
        terms = last.terms if isinstance(last, Sum) and before else ()
        if last.size != rows.size or not terms or terms[0] != Fixed(rows.turned):
            return None
        return Product((*before, Sum((unit, *terms[1:]))))
    if not isinstance(last, Fixed) or last.size % rows.size:
        return None
    if not before:
        before = [Fixed(count) for count in copies if count > 1]
    elif last.size > rows.size:
        before.append(Fixed(last.size // rows.size))
    return Product((*before, unit)) if before else unit
