"""What several models give in the mean, and how far a network is from it: nothing that needs labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import networks
from ..datasets.batches import checked, describe, part_of, tensors_in, to_device
from ..errors import DataError, NetworkError
from ..networks.classes import cross_entropies, divergences, logits_of, turned
from ..networks.forward import evaluating, fed, needs_two, returned
from ..networks.layout import in_parts
from ..networks.returned import leaves_of
from ..networks.state import duplicate
from ..runtime.ranks import ALONE, Ranks
from ..types import Batches
from .options import STEP

LEAST = 1e-6  # nats: a smaller divergence is rounding
MEMORY = 1 << 28  # bytes of targets that are kept; what is beyond is computed again

Step = tuple[Any, tuple[Tensor, ...] | None]  # some inputs and their targets


class Ensemble:
    """Inputs and the weighted mean of the teachers' outputs on them, step by step, in the order of batches.

    Targets beyond `memory` bytes are computed at every pass; with several `ranks`, who share the steps, each
    then makes those of its own samples (None: not made yet). Labels are looked at for their shape alone:
    where they are numbers of classes, it tells the axis of logits.
    """

    def __init__(
        self,
        teachers: Sequence[nn.Module],
        shares: Sequence[float],
        batches: Batches,
        output: str | int | None,
        memory: int = MEMORY,
        device: str | torch.device = "cpu",
        logits: bool = True,
        ranks: Ranks = ALONE,
    ):
        self.ranks, self.full = ranks, False
        self.teachers, self.shares, self.batches = teachers, shares, batches
        self.output, self.left, self.device = output, memory, device
        self.normed = bool(networks.running_norms(teachers[0]))
        self.known: list[tuple[Tensor, ...]] = []
        self.steps = self.count = self.passes = 0
        self.logits = logits  # whether outputs may be logits: with a loss of the user's own nobody knows
        self.axis: int | None = None  # of the classes, where outputs are logits
        self.starts: tuple[float, ...] = (1.0,)

    def __iter__(self) -> Iterator[Step]:
        self.passes += 1
        self.steps = self.count = 0
        for inputs, labels in checked(self.batches):
            size = max((len(tensor) for tensor in tensors_in(inputs) if tensor.ndim), default=1)
            self.count += size
            for begun in range(0, size, STEP):
                if self.normed and size - begun == 1:  # such norms take no single sample
                    continue
                part = fed(self.teachers[0], part_of(inputs, begun, begun + STEP), self.device)
                if self.logits and self.passes == 1 and not self.steps:
                    self.axis = self._axis(part, part_of(labels, begun, begun + STEP))
                yield part, self._targets(part)
                self.steps += 1
        if not self.steps:
            raise (
                needs_two("of all batches")
                if self.normed
                else DataError("the data holds no batches to train on")
            )

    def _targets(self, inputs: Any) -> tuple[Tensor, ...] | None:
        if self.steps < len(self.known):
            return self.known[self.steps]
        if self.full and self.ranks.size > 1:
            return None
        targets = self._made(inputs)
        size = sum(one.nbytes for one in targets)
        self.full |= size > self.left
        if self.steps == len(self.known) and size <= self.left:
            self.known.append(targets)
            self.left -= size
        return targets

    def _made(self, inputs: Any) -> tuple[Tensor, ...]:
        with torch.no_grad():
            every = [self._answers(teacher, inputs) for teacher in self.teachers]
        return tuple(
            reduce(torch.add, (share * one for share, one in zip(self.shares, same, strict=True)))
            for same in zip(*every, strict=True)
        )

    def _answers(self, network: nn.Module, inputs: Any) -> tuple[Tensor, ...]:
        """All numbers that a network returns, or of the output that was chosen. Raises NetworkError."""
        found = returned(network, inputs, output=self.output)
        tensors = (leaf.tensor for leaf in leaves_of(found) if not leaf.record)
        answers = tuple(t.float() for t in tensors if t is not None and t.is_floating_point())
        if not answers:
            raise NetworkError(f"the network returns {describe(found)}; expected tensors of numbers")
        return answers

    def _axis(self, inputs: Any, labels: Any) -> int | None:
        """The axis of the classes, where all that the network returns are logits of these labels."""
        with torch.no_grad():
            found = returned(self.teachers[0], inputs, output=self.output)
        if not isinstance(found, Tensor) or not isinstance(labels, Tensor) or labels.dtype != torch.int64:
            return None
        logits = turned(found, labels)
        fits = logits.ndim > 1 and logits.shape[:1] + logits.shape[2:] == labels.shape
        return (1 if logits is found else -1) if fits else None

    def begin(self, network: nn.Module) -> float:
        """From now on `loss` is in parts of what the network lacks now: that in sum, one of each kind.

        Of logits the divergence of distributions is the second kind, where there is any.
        """
        lost = self._by_step(network, self._lacking)
        every: list[float] = [sum(kind) / len(lost) for kind in zip(*lost, strict=True)]
        self.starts = (every[0] or 1.0, *(math.inf if one < LEAST else one for one in every[1:]))
        return sum(one / start for one, start in zip(every, self.starts, strict=True))

    def missing(self, network: nn.Module) -> float:
        """The mean square of what the network's outputs lack of the targets; after `begin`, `loss`."""
        lost = self._by_step(network, lambda *step: (self.loss(*step),))
        return sum(one for (one,) in lost) / len(lost)

    def _by_step(
        self, network: nn.Module, figures: Callable[..., tuple[Tensor, ...]]
    ) -> list[tuple[float, ...]]:
        """Figures of every step, for which ranks take turns."""
        ranks = self.ranks

        def mine() -> list[tuple[int, tuple[float, ...]]]:
            with evaluating(network), torch.no_grad():
                return [
                    (k, tuple(one.item() for one in figures(network, *step)))
                    for k, step in enumerate(self)
                    if k % ranks.size == ranks.rank
                ]

        return [found for _, found in sorted(itertools.chain(*ranks.shared(mine)))]

    def loss(self, network: nn.Module, inputs: Any, targets: tuple[Tensor, ...] | None) -> Tensor:
        """The mean square of what is missing, over all numbers of all outputs; more after `begin`."""
        lacking = zip(self._lacking(network, inputs, targets), self.starts, strict=False)
        return reduce(torch.add, (one / start for one, start in lacking))

    def _lacking(
        self, network: nn.Module, inputs: Any, targets: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, ...]:
        """The mean square; of logits the divergence from the targets' distributions, too, in nats."""
        targets = self._made(inputs) if targets is None else targets
        answers = self._answers(network, inputs)
        every = sum(one.numel() for one in targets)
        lost = [F.mse_loss(*pair) * (pair[1].numel() / every) for pair in zip(answers, targets, strict=True)]
        square = reduce(torch.add, lost)
        if self.axis is None:
            return (square,)
        given, wanted = (one.log_softmax(self.axis) for one in (answers[0], targets[0]))
        apart = F.kl_div(given, wanted, reduction="none", log_target=True)
        return square, apart.sum(self.axis).mean()


def holding(network: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the network with these weights, in evaluation."""
    return networks.load(duplicate(network), tensors).eval()


class Agreement:
    """How far networks are from the mean of their endpoints' probabilities, on samples with class numbers.

    `shares` are the endpoints' weights in that mean, `loss` is its cross-entropy, in nats. `batches` come in
    the same order each time; of as many as take `memory` bytes of probabilities it is known. `network` says
    what runs, and keeps its weights. Raises DataError, NetworkError where outputs are no logits of classes.
    """

    def __init__(
        self,
        network: nn.Module,
        endpoints: Sequence[Mapping[str, Tensor]],
        shares: Sequence[float],
        batches: Batches,
        output: str | int | None = None,
        device: str = "cpu",
        memory: int = MEMORY,
    ):
        self.batches, self.device = batches, device
        own, self.wanted, losses = duplicate(network).float().to(device), list[Tensor](), list[Tensor]()
        for k, (endpoint, share) in enumerate(zip(endpoints, shares, strict=True)):
            networks.load(own, endpoint)
            for number, (logits, targets) in enumerate(self._answers(own, output)):
                part = share * logits.float().softmax(dim=1)
                if k and number == len(self.wanted):
                    break
                if not k:
                    if (memory := memory - part.nbytes) < 0:
                        break
                    self.wanted.append(torch.zeros_like(part))
                self.wanted[number] += part
                if k == len(endpoints) - 1:
                    losses.append(cross_entropies(self.wanted[number].log(), targets))
        self.loss = torch.cat(losses).nanmean().item() if losses else math.nan

    def apart(self, network: nn.Module, output: str | int | None = None) -> Tensor:
        """The divergence of every sample, in nats, float64 (samples,); NaN where no target counts."""
        pairs = zip(self.wanted, self._answers(network, output), strict=False)
        found = [divergences(logits, one, targets) for one, (logits, targets) in pairs]
        return torch.cat(found) if found else torch.empty(0)

    def _answers(self, network: nn.Module, output: str | int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """The logits and targets of every batch."""
        with evaluating(network), torch.inference_mode():
            for number, (inputs, targets) in enumerate(checked(self.batches)):
                outputs = in_parts(network, fed(network, inputs, self.device), output)
                targets = to_device(targets, self.device)
                yield logits_of(outputs, targets, number), targets
