"""Means and standard deviations of channels, seen in a graph that runs as far as they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..datasets.batches import checked
from ..errors import NetworkError
from ..graph.tracing import needed_for
from ..networks.running import fed
from ..types import Batches
from .producers import Graphs, Producers


class Moments:
    """Mean and standard deviation of every channel, over samples and places, batch after batch in float64."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, value: Tensor, channel: int) -> None:
        rows = value.movedim(channel, -1).reshape(-1, value.shape[channel])
        rows = rows if rows.dtype == torch.float64 else rows.float()
        variance, mean = (x.cpu().double() for x in torch.var_mean(rows, 0, correction=0))
        count = self.count + len(rows)
        apart = mean - self.mean
        self.squares = self.squares + len(rows) * variance + apart**2 * self.count * len(rows) / count
        self.mean = self.mean + apart * len(rows) / count
        self.count = count

    @property
    def std(self) -> Tensor:
        return (self.squares / self.count).sqrt()


class Measured:
    """Runs networks of one kind on the data; a graph for every shape of inputs, since graphs fix it."""

    def __init__(
        self,
        network: nn.Module,
        batches: Batches,
        device: str | torch.device,
        known: dict[Any, Any],
    ):
        self.network, self.batches, self.device, self.known = network, batches, device, known
        self.graphs = Graphs(network, known.setdefault("graphs", {}))
        self.passes = 0

    def moments(
        self, state: Mapping[str, Tensor], wanted: Iterable[str], added: Mapping[str, Tensor]
    ) -> dict[str, Moments]:
        """Of the sites of these weights, for a network of these tensors; `added`: new biases, by weight."""
        found = {weight: Moments() for weight in wanted}
        for inputs, _ in checked(self.batches):
            inputs = fed(self.network, inputs, self.device)
            graph = self.graphs.of(inputs)
            if not set(found) <= set(graph.sites):
                raise NetworkError("the network has other layers for inputs of another shape")
            shown = {graph.sites[weight].node: graph.sites[weight] for weight in found}
            extra = extras(graph, added)
            needed = needed_for([node for node in graph.program.graph.nodes if node.name in shown])
            nodes = [node for node in graph.program.graph.nodes if node in needed]
            run = graph.run(state, inputs, nodes)
            for node, value in run.each(nodes):
                if node.name in extra:
                    value = run.env[node] = value + extra[node.name]
                if (site := shown.get(node.name)) is not None:
                    found[site.weight].add(value, site.channel)
        self.passes += 1
        return found


def extras(graph: Producers, added: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """New biases, by weight, as what is to be added to the values of nodes, by name."""
    sites = {weight: graph.sites[weight] for weight in added}
    return {site.node: added[w].reshape(-1, *[1] * (-site.channel - 1)) for w, site in sites.items()}
