"""All parameters of a network as one row of numbers, so that models are mixed and moved in one go.

In the rows of models a convolution's weights lie with the input channels last: its slices along either
channel axis are the rows or the columns of one matrix then, and nothing is copied to multiply them. The
network itself has its parameters as it knows them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from ... import networks
from ...errors import NetworkError
from ...networks.state import duplicate


class Flat:
    """Where each parameter of a network lies in one row of float32 numbers.

    In the order of models unless `turned` is false: then in the network's own.
    """

    def __init__(self, network: nn.Module, *, turned: bool = True):
        self.shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
        own = {p: name for name, p in network.named_parameters()}
        shared = network.named_parameters(remove_duplicate=False)
        self.names = {name: own[p] for name, p in shared}  # tied ones: by the first name
        starts, end = {}, 0
        for name, shape in self.shapes.items():
            starts[name] = end
            end += math.prod(shape)
        self.starts, self.size = starts, end
        # whether models and network differ in their order
        self.turned = turned and any(len(shape) > 2 for shape in self.shapes.values())
        self.like = next(network.parameters())

    def row(self, model: Mapping[str, torch.Tensor]) -> torch.Tensor:
        row = torch.empty(self.size, dtype=torch.float32, device=self.like.device)
        for name in self.shapes:
            self._model_view(row, name).copy_(model[name].detach())
        return row

    def views(
        self, row: torch.Tensor, rest: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """The row as named tensors; with copies of what is no parameter from `rest`."""
        views = {name: self._model_view(row, own) for name, own in self.names.items()}
        others = {n: rest[n].to(row.device, copy=True) for n in rest if n not in views} if rest else {}
        return views | others

    def install(self, network: nn.Module, point: torch.Tensor, gradient: torch.Tensor) -> None:
        """Let the network's parameters and their gradients lie in these rows, in its own order."""
        for name, parameter in network.named_parameters():
            parameter.data = self._network_view(point, name)
            parameter.requires_grad_().grad = self._network_view(gradient, name)

    def to_network(self, row: torch.Tensor, out: torch.Tensor) -> None:
        """A model's row in the network's own order."""
        for name in self.shapes:
            self._network_view(out, name).copy_(self._model_view(row, name))

    def from_network(self, row: torch.Tensor, out: torch.Tensor) -> None:
        """The network's parameters, or their gradients, in the order of models."""
        for name in self.shapes:
            self._model_view(out, name).copy_(self._network_view(row, name))

    def _network_view(self, row: torch.Tensor, name: str) -> torch.Tensor:
        start, shape = self.starts[name], self.shapes[name]
        return row[start : start + math.prod(shape)].view(shape)

    def _model_view(self, row: torch.Tensor, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        if len(shape) <= 2 or not self.turned:
            return self._network_view(row, name)
        return self._network_view(row, name).view(shape[0], *shape[2:], shape[1]).movedim(-1, 1)


def prepared(network: nn.Module, device: torch.device) -> nn.Module:
    """A copy whose norms use the statistics of the batch: running ones belong to no mixture."""
    network = duplicate(network).float().to(device).eval()
    if not any(True for _ in network.parameters()):
        raise NetworkError("the network has no parameters")
    for norm in networks.running_norms(network).values():
        norm.train()
    return network
