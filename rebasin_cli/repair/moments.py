"""Means and standard deviations of channels, seen in a graph that runs as far as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..datasets.batches import checked, map_tensors
from ..errors import NetworkError
from ..networks.running import fed
from ..types import Batches
from .producers import Producers, Site, find


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


class _Enough(Exception):
    """All that was asked for has been seen."""


class Run(fx.Interpreter):
    """One forward pass that shows the values of some sites, then stops. `added`: new biases, by node."""

    def __init__(
        self,
        graph: fx.GraphModule,
        sites: Mapping[str, Site],
        added: Mapping[str, Tensor],
        see: Callable[..., Any],
    ):
        super().__init__(graph)
        self.extra_traceback = False  # the stop is no failure; PyTorch imports its compiler to describe one
        self.sites, self.added, self.see, self.left = sites, added, see, len(sites)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.name in self.added:
            value = value + self.added[n.name]
        if n.name in self.sites:
            self.see(self.sites[n.name], value)
            self.left -= 1
            if not self.left:
                raise _Enough
        return value


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
        self.graphs: dict[Any, Producers] = known.setdefault("graphs", {})
        self.passes = 0

    def graph(self, inputs: Any) -> Producers:
        key = repr(map_tensors(_Shape, inputs))
        if key not in self.graphs:
            self.graphs[key] = find(self.network, inputs)
        return self.graphs[key]

    def first(self) -> Producers:
        inputs, _ = next(checked(self.batches))
        return self.graph(fed(self.network, inputs, self.device))

    def moments(
        self, state: Mapping[str, Tensor], wanted: Iterable[str], added: Mapping[str, Tensor]
    ) -> dict[str, Moments]:
        """Of the sites of these weights, for a network of these tensors; `added`: new biases, by weight."""
        found = {weight: Moments() for weight in wanted}
        for inputs, _ in checked(self.batches):
            inputs = fed(self.network, inputs, self.device)
            graph = self.graph(inputs)
            if not set(found) <= set(graph.sites):
                raise NetworkError("the network has other layers for inputs of another shape")
            shown = {graph.sites[weight].node: graph.sites[weight] for weight in found}
            extra = {graph.sites[weight].node: along(graph.sites[weight], b) for weight, b in added.items()}
            run = Run(
                graph.program.graph_module,
                shown,
                extra,
                lambda site, value: found[site.weight].add(value, site.channel),
            )
            try:
                run.run(*graph.arguments(state, inputs))
            except _Enough:
                pass
        self.passes += 1
        return found


class _Shape:
    """What a graph fixes of a tensor."""

    def __init__(self, tensor: Tensor):
        self.text = f"{tensor.dtype} {tuple(tensor.shape)}"

    def __repr__(self) -> str:
        return self.text


def along(site: Site, values: Tensor) -> Tensor:
    """One value a channel, to be added to what the site gives."""
    return values.reshape(-1, *[1] * (-site.channel - 1))
