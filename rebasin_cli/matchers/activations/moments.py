"""One pass of two models over the same inputs: what their units have in common, place by place.

Both run through one graph, node by node beside each other. Where units are looked at, sums over samples are
added up in float64, and the values are let go: memory depends neither on the number of samples nor on the
network's depth, only on a batch and on (n, n) a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ...datasets._batches import tensors_in
from ...errors import NetworkError
from ...inference.program import Program
from ...inference.tracing import needed_for
from ...runtime.threads import ALONE, Beside
from .showing import Place
from .sites import Sites

Tensors = Mapping[str, torch.Tensor]

SLAB = 1 << 18  # numbers that are multiplied at once, in float64: few enough for a cache
LEAST = 256  # samples of them, however many units there are
FLAT = 1e-12  # a variance below this share of the mean square is rounding: the unit is constant


@dataclass
class Moments:
    """Sums over samples of the units (n,) of two models, and of all pairs of them (n, n)."""

    samples: int
    sums: tuple[torch.Tensor, torch.Tensor]
    squares: tuple[torch.Tensor, torch.Tensor]
    products: torch.Tensor  # unit of the reference × unit of the model

    @classmethod
    def none(cls, units: int, device: torch.device) -> Moments:
        def zeros() -> torch.Tensor:
            return torch.zeros(units, dtype=torch.float64, device=device)

        return cls(0, (zeros(), zeros()), (zeros(), zeros()), torch.outer(zeros(), zeros()))

    def add(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """Units × samples of both."""
        step = max(LEAST, SLAB // len(a))
        for x, y in zip(a.split(step, 1), b.split(step, 1), strict=True):
            x, y = x.double(), y.double()
            for k, part in enumerate((x, y)):
                self.sums[k].add_(part.sum(1))
                self.squares[k].add_(torch.linalg.vecdot(part, part))
            self.products.addmm_(x, y.T)
        self.samples += a.shape[1]

    def finite(self) -> bool:
        return all(bool(part.isfinite().all()) for part in (*self.squares, self.products))

    def inner(self) -> torch.Tensor:
        """Mean products, not centred."""
        return self.products / self.samples

    def l2(self) -> torch.Tensor:
        """Mean squared distances, negative: larger is better."""
        a, b = (square / self.samples for square in self.squares)
        return 2 * self.inner() - a[:, None] - b

    def spread(self) -> list[torch.Tensor]:
        """The standard deviations (n,) of both models' units; 0 for what is constant."""
        return [
            deviation(s, squares, self.samples) for s, squares in zip(self.sums, self.squares, strict=True)
        ]

    def correlation(self) -> torch.Tensor:
        """In −1 … 1; 0 where a unit of either is constant."""
        means = [part / self.samples for part in self.sums]
        inverse = [torch.where(std > 0, 1 / std, 0.0) for std in self.spread()]
        centred = self.inner() - torch.outer(*means)
        return centred * inverse[0][:, None] * inverse[1]


def deviation(sums: torch.Tensor, squares: torch.Tensor, samples: int) -> torch.Tensor:
    """Standard deviations from sums over samples; 0 where a unit is constant but for rounding."""
    square = squares / samples
    variance = square - (sums / samples).square()
    return torch.where(variance > FLAT * square, variance, 0.0).sqrt()


def watch(
    sites: Sites,
    models: tuple[Tensors, ...],
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    places: Iterable[tuple[Place, Any]],
    device: str | torch.device,
    threads: Beside = ALONE,
) -> None:
    """Run all models on one batch of the shape that `sites` are for; add what the places show.

    A place comes with `Moments` of two models, or anything whose `add` takes the units of as many. Models run
    beside each other on the `threads`, and so does what is added up.
    """
    wanted: dict[fx.Node, list[tuple[Place, Any]]] = {}
    for place, moments in places:
        wanted.setdefault(place.node, []).append((place, moments))
    graph, needed = sites.program.graph, needed_for(list(wanted))
    runs = [fx.Interpreter(sites.program.graph_module) for _ in models]
    for run, model in zip(runs, models, strict=True):
        run.env |= dict(_given(sites.program, model, inputs, needed, device))
    nodes: list[fx.Node] = []
    for node in (node for node in graph.nodes if node in needed):
        nodes.append(node)
        if node in wanted:
            shown = threads.each(partial(_advanced, nodes, needed), runs)
            held = sum(value.nbytes for value in tensors_in(shown))
            for place, moments in wanted[node]:
                threads.later(_added, place, moments, shown, held=held)
            nodes = []
    threads.settle()


def _advanced(nodes: Iterable[fx.Node], needed: set[fx.Node], run: fx.Interpreter) -> Any:
    """The value of the last of these nodes; others are let go when nobody needs them any more."""
    with torch.no_grad():
        for node in nodes:
            if node.op != "placeholder":
                run.env[node] = run.run_node(node)
            value = run.env[node]
            for gone in run.user_to_last_uses.get(node, ()):
                run.env.pop(gone, None)
            if not node.users.keys() & needed:
                run.env.pop(node, None)
    return value


def _added(place: Place, moments: Any, shown: Iterable[Any]) -> None:
    moments.add(*(place.units(value) for value in shown))


def _given(
    program: Program,
    model: Tensors,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    needed: set[fx.Node],
    device: str | torch.device,
) -> Iterator[tuple[fx.Node, Any]]:
    """The values of the graph's placeholders, tensors in the types that the network has."""
    leaves = iter(pytree.tree_leaves(inputs))
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(nodes, program.inputs, strict=True):
        if spec.kind == InputKind.USER_INPUT:
            yield node, next(leaves)
        elif node in needed:
            tensor = model.get(spec.target, program.constants.get(spec.target))
            if tensor is None:
                raise NetworkError(f"the network needs {spec.target}, which no checkpoint has")
            yield node, tensor.to(device=device, dtype=node.meta["val"].dtype)
