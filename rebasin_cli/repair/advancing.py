"""Several models of one network, brought through it together, from layer to layer, batch by batch.

All are values of one graph. What they have become so far is kept where memory is allowed for all of it; else
it is computed from the inputs again. The figures are the same either way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from ..datasets.batches import checked, map_tensors, tensors_in
from ..errors import NetworkError
from ..graph.tracing import needed_for
from ..networks.running import fed
from ..types import Tensors
from .producers import Producers, find


class Graphs:
    """The network's graph for every shape of inputs, since graphs fix it."""

    def __init__(self, network: nn.Module, known: dict[Any, Producers]):
        self.network, self.known = network, known

    def of(self, inputs: Any) -> Producers:
        key = repr(map_tensors(_Shape, inputs))
        if key not in self.known:
            self.known[key] = find(self.network, inputs)
        return self.known[key]


class _Shape:
    """What a graph fixes of a tensor."""

    def __init__(self, tensor: Tensor):
        self.text = f"{tensor.dtype} {tuple(tensor.shape)}"

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Seen:
    """One batch: the graph's `nodes` by name, and of every model the values by a node's name."""

    nodes: Mapping[str, fx.Node]
    values: Sequence[Mapping[str, Any]]


class Advancing:
    """`models` on the batches of `data`, brought on together; their tensors may change between two places.

    `memory` is how many bytes of values may be kept. `passes` counts the readings of the data.
    """

    def __init__(
        self,
        graphs: Graphs,
        models: Sequence[Tensors],
        data: Iterable[Any],
        device: str | torch.device,
        *,
        memory: int,
    ):
        self.graphs, self.models, self.data, self.device = graphs, models, data, device
        self.memory = memory
        self.kept: list[_Batch] = []
        self.passes = 0

    def at(self, here: str, wanted: Collection[str]) -> Iterator[Seen]:
        """Of every batch, the values of all models at the `wanted` nodes, none of which lies before `here`...

        All models are brought to just before `here`. What comes later is computed for the moment only, so
        that the models may be changed from there on. Places are asked for in their order.
        """
        left = self.memory
        kept: list[_Batch] = []
        for batch in self._batches():
            batch.advance(here)
            yield batch.show(wanted)
            left -= batch.bytes
            kept = [*kept, batch] if left >= 0 else []
            if left < 0:
                left = -1
        self.kept = kept

    def _batches(self) -> Iterator[_Batch]:
        if self.kept:
            batches, self.kept = self.kept, []
            while batches:
                yield batches.pop(0)
            return
        self.passes += 1
        some = None
        for inputs, _ in checked(self.data):
            inputs = fed(self.graphs.network, inputs, self.device)
            graph = self.graphs.of(inputs)
            batch = _Batch(graph, [graph.arguments(model, inputs) for model in self.models])
            some = some or batch
            if list(batch.nodes) != list(some.nodes):
                raise NetworkError("the network has other layers for inputs of another shape")
            yield batch


class _Batch:
    """One batch of inputs, and what the models have made of it so far."""

    def __init__(self, graph: Producers, arguments: Sequence[Sequence[Any]]):
        program = graph.program
        self.nodes = {node.name: node for node in program.graph.nodes}
        self.order = list(self.nodes.values())
        self.place = 0
        self.own = fx.Interpreter(program.graph_module, garbage_collect_values=False)
        given = [node for node in self.order if node.op == "placeholder"]
        specs = program.inputs
        self.fixed = {n for n, s in zip(given, specs, strict=True) if s.kind != InputKind.USER_INPUT}
        self.runs = [dict(zip(given, values, strict=True)) for values in arguments]
        last: dict[fx.Node, int] = {}
        for k, node in enumerate(self.order):
            last |= dict.fromkeys(node.all_input_nodes, k)
        self.last = last

    def advance(self, here: str) -> None:
        """Compute all before this node, and forget what nothing from there on reads."""
        there = self.order.index(self.nodes[here])
        for run in self.runs:
            self._run(run, self.order[self.place : there])
            for node in [n for n in run if self.last.get(n, -1) < there and n not in self.fixed]:
                del run[node]
        self.place = max(self.place, there)

    def show(self, wanted: Collection[str]) -> Seen:
        nodes = [self.nodes[name] for name in wanted]
        needed = needed_for(nodes)
        ahead = [node for node in self.order[self.place :] if node in needed]
        found = []
        for run in self.runs:
            values = dict(run)
            self._run(values, ahead)
            found.append({node.name: values[node] for node in nodes})
        return Seen(self.nodes, found)

    def _run(self, values: dict[fx.Node, Any], nodes: Iterable[fx.Node]) -> None:
        self.own.env = values
        with torch.no_grad():
            for node in nodes:
                if node.op not in ("placeholder", "output"):
                    values[node] = self.own.run_node(node)

    @property
    def bytes(self) -> int:
        """Of what is kept, without the models' own tensors."""
        return sum(
            tensor.nbytes
            for run in self.runs
            for node, value in run.items()
            if node not in self.fixed
            for tensor in tensors_in(value)
        )
