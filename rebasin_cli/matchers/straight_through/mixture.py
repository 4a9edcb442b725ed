"""The network at a mixture of models: its loss there, that on held-out samples, and what a pass costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from ... import networks
from ...datasets.batches import checked, head, size_of, to_device
from ...errors import NetworkError
from ...networks.layout import in_parts
from ...networks.running import fed, forward, returned
from ...networks.scoring import Loss, accuracies, turned
from ...repair.calibration import MOST, calibrated_loss, rows_of
from .. import Problem
from .flat import Flat, prepared
from .multiplications import Counter
from .training import HELD_OUT

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
        """What the mean loses on the samples that are held out, norms on batch statistics."""
        count = len(self.rows)
        self.mix([1 / count] * count)
        total_loss = right = 0.0
        samples = 0
        kept = Kept()
        with torch.no_grad():
            for inputs, targets in checked(held):
                size = size_of(targets, inputs)
                if size <= self.normed and samples:
                    continue
                targets = to_device(targets, self.device)
                loss, outputs = self._scored(inputs, targets, number)
                total_loss += size * loss.item()
                samples += size
                if not self.scored.own:
                    logits = turned(outputs, targets)
                    right += accuracies(logits, targets).nansum().item()
                    kept.add(logits, targets)
                if samples >= HELD_OUT:
                    break
        mean = math.inf if math.isnan(total_loss) else total_loss / samples
        if self.scored.own:
            return Held(mean, math.nan, mean)
        return Held(mean, right / samples, kept.calibrated(mean))


class Held(NamedTuple):
    """Loss in nats (inf where it is no number), accuracy, and the loss at the best temperature.

    Accuracy is NaN for a loss of the user's own, whose outputs may be no logits; that loss is as it is.
    """

    loss: float
    accuracy: float
    calibrated: float


class Kept:
    """Logits and their targets, as long as there are few enough."""

    def __init__(self) -> None:
        self.parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.left = MOST

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.left -= outputs.numel()
        if self.left < 0:
            self.parts = []
        else:
            self.parts.append(rows_of(outputs.float(), targets))

    def calibrated(self, loss: float) -> float:
        """Their loss at the best temperature; `loss` where they are too many or no finite numbers."""
        if self.left < 0 or not math.isfinite(loss):
            return loss
        logits, targets = map(torch.cat, zip(*self.parts, strict=True))
        return calibrated_loss(logits, targets) if logits.isfinite().all() else loss
