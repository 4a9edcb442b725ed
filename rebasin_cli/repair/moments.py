"""Means and standard deviations of channels, seen in a graph that runs as far as they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..datasets.batches import checked
from ..errors import NetworkError
from ..graph.tracing import needed_for
from ..networks.forward import fed
from ..runtime.ranks import ALONE, Ranks
from ..types import Batches
from .producers import Graphs, Producers

Part = tuple[int, Tensor, Tensor]  # of a batch: values a channel, their mean and variance (channels,) float64


class Moments:
    """Mean and standard deviation of every channel, over samples and places, batch after batch in float64."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, more: Part) -> None:
        """Chan et al. 1982, eq. 2.1."""
        size, mean, variance = more
        count = self.count + size
        apart = mean - self.mean
        self.squares = self.squares + size * variance + apart**2 * self.count * size / count
        self.mean = self.mean + apart * size / count
        self.count = count

    @property
    def std(self) -> Tensor:
        return (self.squares / self.count).sqrt()


def part(value: Tensor, channel: int) -> Part:
    """Of one batch's values, whose channels lie on this axis."""
    rows = value.movedim(channel, -1).reshape(-1, value.shape[channel])
    rows = rows if rows.dtype == torch.float64 else rows.float()
    variance, mean = (x.cpu().double() for x in torch.var_mean(rows, 0, correction=0))
    return len(rows), mean, variance


class Measured:
    """Runs networks of one kind on the data; a graph for every shape of inputs, since graphs fix it.

    Several `ranks` take turns with the batches.
    """

    def __init__(
        self,
        network: nn.Module,
        batches: Batches,
        device: str | torch.device,
        known: dict[Any, Any],
        ranks: Ranks = ALONE,
    ):
        self.network, self.batches, self.device, self.known = network, batches, device, known
        self.ranks = ranks
        self.graphs = Graphs(network, known.setdefault("graphs", {}))
        self.passes = 0

    def moments(
        self, state: Mapping[str, Tensor], wanted: Iterable[str], added: Mapping[str, Tensor]
    ) -> dict[str, Moments]:
        """Of the sites of these weights, for a network of these tensors; `added`: new biases, by weight.

        Batches are added up in their order, whoever saw them: figures are the same for every number of ranks.
        """
        found = {weight: Moments() for weight in wanted}
        parts = self._parts(state, set(found), added)
        while True:  # as many batches as there are ranks, then their parts, so that no more is held
            own = self.ranks.each(next, parts, None)
            rounds = self.ranks.all(own)
            for its in rounds:
                for weight, part_ in (its or {}).items():
                    found[weight].add(part_)
            if rounds[-1] is None:  # the last rank has no batch more, so none has one after this
                break
        self.passes += 1
        return found

    def _parts(
        self, state: Mapping[str, Tensor], wanted: set[str], added: Mapping[str, Tensor]
    ) -> Iterator[dict[str, Part]]:
        """Of this rank's batches, one after the other; all ranks go through all batches."""
        for number, (inputs, _) in enumerate(checked(self.batches)):
            if number % self.ranks.size != self.ranks.rank:
                continue
            parts: dict[str, Part] = {}
            inputs = fed(self.network, inputs, self.device)
            graph = self.graphs.of(inputs)
            if not wanted <= set(graph.sites):
                raise NetworkError("the network has other layers for inputs of another shape")
            shown = {graph.sites[weight].node: graph.sites[weight] for weight in wanted}
            extra = extras(graph, added)
            needed = needed_for([node for node in graph.program.graph.nodes if node.name in shown])
            nodes = [node for node in graph.program.graph.nodes if node in needed]
            run = graph.run(state, inputs, nodes)
            for node, value in run.each(nodes):
                if node.name in extra:
                    value = run.env[node] = value + extra[node.name]
                if (site := shown.get(node.name)) is not None:
                    parts[site.weight] = part(value, site.channel)
            yield parts


def extras(graph: Producers, added: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """New biases, by weight, as what is to be added to the values of nodes, by name."""
    sites = {weight: graph.sites[weight] for weight in added}
    return {site.node: added[w].reshape(-1, *[1] * (-site.channel - 1)) for w, site in sites.items()}
