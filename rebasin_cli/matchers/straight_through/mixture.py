"""The network at a mixture of models: its loss there, that on held-out samples, and what a pass costs.

All parameters of a model are one row of numbers, so that models are mixed and moved in one go. In these rows
a convolution's weights lie with the input channels last: its slices along either channel axis are the rows or
the columns of one matrix then, and nothing is copied to multiply them. The network itself has its parameters
as it knows them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ... import networks
from ...datasets.batches import checked, head, size_of, to_device
from ...errors import DataError, NetworkError
from ...learning.learner import HALF, NEAR, Learner
from ...networks.classes import accuracies, any_counts, turned
from ...networks.forward import fed, forward, returned
from ...networks.layout import in_parts
from ...networks.losses import Loss
from ...networks.state import duplicate
from ...repair.calibration import MOST, calibrated_loss, rows_of
from .. import Problem
from .multiplications import Counter
from .settings import HELD_OUT


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


FEW = 2  # samples on which multiplications are counted; norms need two


class Mixture:
    """Σ λ_k π_k(θ_k) of models that stand in one row of numbers each, `rows`, the reference first.

    Two more rows hold the network's parameters and their gradients, and each helps to fill the other where
    rows have another order than the network (`flat`); who cuts no slices out of them does without (`turned`).
    """

    def __init__(self, problem: Problem, precision: str, *, turned: bool = True):
        self.problem, self.precision = problem, precision
        self.scored = Loss.of(problem.loss)
        self.device = torch.device(problem.device)
        self.network = prepared(problem.given_network, self.device)
        self.flat = Flat(self.network, turned=turned)
        self.rows = [self.flat.row(model) for model in problem.models]
        self._point, self._gradient = (torch.zeros_like(self.rows[0]) for _ in range(2))
        self.flat.install(self.network, self._point, self._gradient)
        self.normed = int(networks.has_running_statistics(self.network))  # samples that say nothing

    def mix(self, shares: Sequence[float]) -> None:
        """Let the network hold the models in these shares, and no gradient."""
        reference, *others = self.rows
        with torch.no_grad():
            total = self._gradient if self.flat.turned else self._point
            torch.mul(reference, shares[0], out=total)
            for row, weight in zip(others, shares[1:], strict=True):
                total.add_(row, alpha=weight)
            if self.flat.turned:
                self.flat.to_network(total, self._point)
            self._gradient.zero_()

    def add_decay(self, decay: float) -> None:
        """Add `decay` times the network's parameters to their gradients, before `gradient` is asked for."""
        self._gradient.add_(self._point, alpha=decay)

    def gradient(self) -> torch.Tensor:
        """Of the loss, in nats, with respect to the sum (numbers,), added up over passes, as a model's row.

        It takes the place of the network's parameters: `mix` anew before the next pass.
        """
        if not self.flat.turned:
            return self._gradient
        self.flat.from_network(self._gradient, self._point)
        return self._point

    @property
    def slopes(self) -> torch.Tensor:
        """The gradients (numbers,) as passes leave them, in the network's own order."""
        return self._gradient

    def loss(self, inputs: Any, targets: Any, number: int) -> torch.Tensor:
        """The mean loss of a batch, with a gradient; `number` is what an error calls the batch."""
        return self._scored(inputs, targets, number)[0]

    def _scored(self, inputs: Any, targets: Any, number: int) -> tuple[torch.Tensor, Any]:
        """The loss, and the outputs."""
        kind, half = self.device.type, self.precision == "bf16"
        with torch.autocast(kind, torch.bfloat16) if half else nullcontext():
            given = fed(self.network, inputs, self.device, wanted=torch.float32)
            # norms need all of a batch, and a gradient keeps what every part leaves
            parts = not (self.normed or torch.is_grad_enabled())
            run = partial(in_parts, exact=True) if parts else returned
            outputs = run(self.network, given, output=self.problem.output)
        return self.scored(outputs, targets, number), outputs

    def passes(self, inputs: Any, size: int) -> float:
        """Multiplications of a forward and a backward pass on such a batch, of so many samples.

        A few samples tell, and a few more what each adds, where the network runs on so few.
        """
        if size > 2 * FEW:
            try:
                few, more = (self._products(head(inputs, n)) for n in (FEW, 2 * FEW))
                return 3 * (few + (size - FEW) * (more - few) / FEW)
            except NetworkError:
                pass
        return 3 * self._products(inputs)

    def _products(self, inputs: Any) -> float:
        """Of a forward pass."""
        with Counter() as counter, torch.no_grad():
            forward(self.network, fed(self.network, inputs, self.device))
        total: float = counter.total
        return total

    def held_out(self, held: Iterable[Any], number: int = 0) -> Held:
        """What the mean loses on the samples that are held out, norms on batch statistics.

        The problem's ranks take turns with the batches.
        """
        count, ranks = len(self.rows), self.problem.ranks
        self.mix([1 / count] * count)
        total_loss = right = 0.0
        samples = counted = 0
        looks, every = zip(*ranks.shared(self._looks, held, number), strict=True)
        for _, look in sorted(itertools.chain(*looks)):  # whoever has looked
            samples += look.samples
            total_loss += look.samples * look.loss
            right += look.right
            counted += look.counted
        kept, *others = every
        for other in others:
            kept.join(other)
        if not samples:
            raise DataError(
                "no target of the held-out samples counts: all are −100",
                hint="The first of every ten batches is held out: give others first, or more of them",
            )
        mean = math.inf if math.isnan(total_loss) else total_loss / samples
        if self.scored.own:
            return Held(mean, math.nan, mean)
        return Held(mean, right / counted if counted else math.nan, kept.calibrated(mean))

    def _looks(self, held: Iterable[Any], number: int) -> tuple[list[tuple[int, Look]], Kept]:
        """What this rank has seen, by the numbers of the batches, and their logits."""
        ranks, kept, samples = self.problem.ranks, Kept(), 0
        found: list[tuple[int, Look]] = []
        batches = itertools.count()
        with torch.no_grad():
            for inputs, targets in checked(held):
                size = size_of(targets, inputs)
                if (size <= self.normed and samples) or not (self.scored.own or any_counts(targets)):
                    continue
                if (k := next(batches)) % ranks.size == ranks.rank:
                    found.append((k, self._look(inputs, to_device(targets, self.device), number, k, kept)))
                samples += size
                if samples >= HELD_OUT:
                    break
        return found, kept

    def _look(self, inputs: Any, targets: Any, number: int, batch: int, kept: Kept) -> Look:
        loss, outputs = self._scored(inputs, targets, number)
        samples = size_of(targets, inputs)
        if self.scored.own:
            return Look(samples, loss.item())
        logits = turned(outputs, targets)
        each = accuracies(logits, targets)  # NaN where targets do not count
        kept.add(batch, logits, targets)
        return Look(samples, loss.item(), each.nansum().item(), int((~each.isnan()).sum()))


class AtMixture(Learner):
    """What learns by the loss at a mixture."""

    mixture: Mixture

    @property
    def network(self) -> nn.Module:  # type: ignore[override]
        return self.mixture.network

    @property
    def near(self) -> float:  # type: ignore[override]
        return HALF if self.mixture.precision == "bf16" else NEAR

    @property
    def own(self) -> bool:  # type: ignore[override]
        return self.mixture.scored.own

    @property
    def slopes(self) -> torch.Tensor:
        return self.mixture.slopes

    def counted(self, targets: Any, size: int) -> int:
        return self.mixture.scored.counted(targets, size)


class Look(NamedTuple):
    """Of a batch: samples, their mean loss, and right answers of so many that count."""

    samples: int
    loss: float
    right: float = 0.0
    counted: int = 0


class Held(NamedTuple):
    """Loss in nats (inf where it is no number), accuracy, and the loss at the best temperature.

    Accuracy is NaN for a loss of the user's own, whose outputs may be no logits; that loss is as it is.
    """

    loss: float
    accuracy: float
    calibrated: float


class Kept:
    """Logits and their targets by the numbers of batches, as long as there are few enough."""

    def __init__(self) -> None:
        self.parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.left = MOST

    def add(self, batch: int, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.left -= outputs.numel()
        self.parts = {} if self.left < 0 else self.parts | {batch: rows_of(outputs.float(), targets)}

    def join(self, other: Kept) -> None:
        self.left -= MOST - other.left
        self.parts = {} if self.left < 0 else self.parts | other.parts

    def calibrated(self, loss: float) -> float:
        """Their loss at the best temperature; `loss` where they are too many or no finite numbers."""
        if self.left < 0 or not math.isfinite(loss):
            return loss
        logits, targets = map(torch.cat, zip(*(self.parts[k] for k in sorted(self.parts)), strict=True))
        return calibrated_loss(logits, targets) if logits.isfinite().all() else loss
