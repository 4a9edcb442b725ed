"""Several models of one network, brought through it together, from layer to layer, batch by batch.

All are values of one graph. What they have become so far is kept where memory is allowed for all of it; else
it is computed from the inputs again. The figures are the same either way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from ..datasets.batches import checked, tensors_in
from ..errors import NetworkError
from ..graph.interpreter import Run
from ..graph.program import placeholders
from ..graph.tracing import needed_for
from ..networks.forward import fed
from ..runtime.ranks import ALONE, Ranks
from ..types import Tensors
from .producers import Graphs, Producers


@dataclass(frozen=True)
class Seen:
    """One batch: the graph's `nodes` by name, and of every model the values by a node's name."""

    nodes: Mapping[str, fx.Node]
    values: Sequence[Mapping[str, Any]]


class Advancing:
    """`models` on the batches of `data`, brought on together; their tensors may change between two places.

    `memory` is how many bytes of values may be kept. `passes` counts the readings of the data. Several
    `ranks` take turns with the batches: each brings on its own.
    """

    def __init__(
        self,
        graphs: Graphs,
        models: Sequence[Tensors],
        data: Iterable[Any],
        device: str | torch.device,
        *,
        memory: int,
        ranks: Ranks = ALONE,
    ):
        self.graphs, self.models, self.data, self.device = graphs, models, data, device
        self.memory, self.ranks = memory, ranks
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
        names: list[str] = []
        for number, (inputs, _) in enumerate(checked(self.data)):
            inputs = fed(self.graphs.network, inputs, self.device)
            graph = self.graphs.of(inputs)
            its = [node.name for node in graph.program.graph.nodes]
            if its != (names := names or its):  # all ranks look at all of them, to end alike
                raise NetworkError("the network has other layers for inputs of another shape")
            if number % self.ranks.size == self.ranks.rank:
                yield _Batch(graph, self.models, inputs)


class _Batch:
    """One batch of inputs, and what the models have made of it so far."""

    def __init__(self, graph: Producers, models: Sequence[Tensors], inputs: Any):
        self.nodes = {node.name: node for node in graph.program.graph.nodes}
        self.order = list(self.nodes.values())
        self.place = 0
        self.runs = [graph.run(model, inputs) for model in models]
        kinds = zip(placeholders(graph.program), graph.program.inputs, strict=True)
        self.fixed = {node for node, spec in kinds if spec.kind != InputKind.USER_INPUT}
        self.last = {read: k for k, node in enumerate(self.order) for read in node.all_input_nodes}

    def advance(self, here: str) -> None:
        """Compute all before this node, and forget what nothing from there on reads."""
        there = self.order.index(self.nodes[here])
        for run in self.runs:
            run.compute(self.order[self.place : there])
            for node in [n for n in run.env if self.last.get(n, -1) < there and n not in self.fixed]:
                del run.env[node]
        self.place = max(self.place, there)

    def show(self, wanted: Collection[str]) -> Seen:
        nodes = [self.nodes[name] for name in wanted]
        needed = needed_for(nodes)
        ahead = [node for node in self.order[self.place :] if node in needed]
        found = []
        for run in self.runs:
            further = Run(run.program, run.env.items())
            further.compute(ahead)
            found.append({node.name: further.env[node] for node in nodes})
        return Seen(self.nodes, found)

    @property
    def bytes(self) -> int:
        """Of what is kept, without the models' own tensors."""
        return sum(
            tensor.nbytes
            for run in self.runs
            for node, value in run.env.items()
            if node not in self.fixed
            for tensor in tensors_in(value)
        )
