"""The network at the mean of models: its loss, the gradient of that, the losses of many changes at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ... import networks
from ...datasets.batches import First, map_tensors, tensors_in, to_device
from ...errors import NetworkError
from ...networks.classes import logits_of
from ...networks.forward import apart, arguments_of, fed, forward, pick, returned
from ...networks.losses import Loss
from .. import Problem
from ..straight_through.mixture import prepared
from ..straight_through.multiplications import counted

SMALLEST = 2e4  # multiplications of a sample, below which a network is no faster
TOGETHER = 1 << 28  # bytes that the changed tensors and activations of a batch of candidates may take

log = logging.getLogger("rebasin")


class Midpoint:
    """The network with the tensors of any point; norms use the statistics of the batch."""

    def __init__(self, problem: Problem):
        self.problem, self.device = problem, torch.device(problem.device)
        self.scored = Loss.of(problem.loss)
        self.network = prepared(problem.given_network, self.device)
        for norm in networks.running_norms(self.network).values():  # nothing is written to under vmap
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        self.names = [name for name, _ in self.network.named_parameters()]
        self.at_once = True

    def loss(self, tensors: Mapping[str, Tensor], batch: tuple[Any, Any]) -> Tensor:
        """The mean loss of a batch at a point, a tensor."""
        inputs, targets = batch
        outputs = functional_call(self.network, dict(tensors), *arguments_of(apart(self.network, inputs)))
        return self.scored(pick(outputs, self.problem.output), targets, checked=True)

    def batch(self, inputs: Any, targets: Any, number: int) -> tuple[Any, Any]:
        """A batch as the network takes it, looked at once. Raises DataError and NetworkError."""
        inputs = fed(self.network, to_device(inputs, self.device), self.device)
        targets = to_device(targets, self.device)
        if not self.scored.own:
            with torch.no_grad():
                logits_of(returned(self.network, inputs, output=self.problem.output), targets, number)
        return inputs, targets

    def batches(self, data: Iterable[Any], most: int) -> Iterator[tuple[Any, Any]]:
        """`batch` of the first `most` samples."""
        for number, (inputs, targets) in enumerate(First(data, most)):
            yield self.batch(inputs, targets, number)

    def work(self, inputs: Any) -> float:
        """Multiplications of a forward pass of one sample; of a small network, what it takes as long as."""
        few = map_tensors(lambda tensor: tensor[:2] if tensor.ndim else tensor, inputs)
        samples = max((len(tensor) for tensor in tensors_in(few) if tensor.ndim), default=1)
        with counted() as counter, torch.no_grad():
            forward(self.network, few)
        return max(SMALLEST, counter.total / samples)

    def gradient(
        self, tensors: Mapping[str, Tensor], batch: tuple[Any, Any]
    ) -> tuple[float, dict[str, Tensor]]:
        """The loss at a point, and its gradient there by the names of parameters."""
        leaves = {name: tensors[name].detach().requires_grad_() for name in self.names}
        loss = self.loss(leaves, batch)
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        pairs = zip(leaves.items(), found, strict=True)
        return loss.item(), {n: torch.zeros_like(t) if g is None else g for (n, t), g in pairs}

    def losses(
        self,
        tensors: Mapping[str, Tensor],
        changes: Sequence[Mapping[str, Tensor]],
        batch: tuple[Any, Any],
    ) -> list[float]:
        """The loss at the point with each of some `changes`, which have the same names, in its place."""
        found: list[float] = []
        size = 4 * sum(tensor.numel() for tensor in changes[0].values()) if changes else 1
        size += 4 * sum(t.numel() for t in [batch[0]] if isinstance(t, Tensor)) * 4
        step = max(1, TOGETHER // max(1, size))
        with torch.no_grad():
            for start in range(0, len(changes), step):
                found += self._some(tensors, changes[start : start + step], batch)
        return [value if math.isfinite(value) else math.inf for value in found]

    def _some(self, tensors: Any, changes: Any, batch: Any) -> list[float]:
        if self.at_once and len(changes) > 1:
            stacked = {name: torch.stack([change[name] for change in changes]) for name in changes[0]}
            try:
                with sdpa_kernel([SDPBackend.MATH]):  # no other kernel takes batches of weights
                    return vmap(lambda change: self.loss({**tensors, **change}, batch))(stacked).tolist()
            except (RuntimeError, NetworkError) as cause:  # an operator that knows no batches of weights
                log.info("changes are tried one after the other, since they cannot be batched: %s", cause)
                self.at_once = False
        return [self.loss({**tensors, **change}, batch).item() for change in changes]
