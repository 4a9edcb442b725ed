"""A step of several ranks: each takes the loss of some samples in a row, and their gradients are added up.

All have the whole batch, so each knows what the others take, and the sum of all shares of the loss is the
mean loss of the batch. Norms measure the whole batch together (`shared_norms`). Whether that is so of this
network and loss, the first batch shows: the first rank takes it whole, too; of a user's loss also batches
with targets that were not seen before, which it may weigh or leave out. Where it is not, the first rank
goes on with whole batches, and the others wait for its gradients. Either way all move by the same numbers.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets.batches import part_of, size_of, tensors_in
from ..errors import RebasinError
from ..networks.attacks import statistics_kept
from ..networks.shared_norms import SharedNorms
from ..runtime.ranks import Ranks
from ..runtime.seeds import seeded
from ..runtime.text import in_a_line
from .learner import Learner

log = logging.getLogger("rebasin")
TESTS = 32  # batches, at most, that show whether a user's loss is a mean: words of a text are new for long
COLUMNS = 64  # numbers of a sample's target that are looked at one by one
Part = tuple[Any, Any, float]  # inputs, targets, and the share of the batch's loss


class Step:
    """The loss of a batch, and after it the gradients of that, by one process."""

    def __init__(self, learner: Learner):
        self.learner = learner
        self.lost: Tensor | None = None

    def loss(self, inputs: Any, targets: Any) -> Tensor:
        """The mean loss of the batch, ()."""
        self.learner.begin_step(inputs, targets)
        self.lost = self.learner.loss(inputs, targets)
        return self.lost

    def backward(self) -> None:
        """Leave the gradients of that loss at the parameters, or in the learner's `slopes`."""
        if self.lost is not None:
            self.lost.backward()
        self.lost = None

    def settle(self) -> None:
        """What networks keep beside parameters is that of the first rank on all."""


@contextmanager
def sharing(learner: Learner, ranks: Ranks) -> Iterator[Step]:
    """Steps that all `ranks` take together."""
    step = Step(learner) if ranks.size == 1 else Shared(learner, ranks)
    yield step
    step.settle()


class Shared(Step):
    """The same by several ranks, each of which calls these alike."""

    def __init__(self, learner: Learner, ranks: Ranks):
        super().__init__(learner)
        self.ranks, self.norms = ranks, SharedNorms(learner.network, ranks)
        self.whole: str | None = None  # why batches are not cut, "" where they are; None: not seen yet
        self.cut = False  # whether this batch is
        self.batches, self.tests, self.seen = 0, 0, set[int]()  # and targets of those that were tested
        self.lies = dict[torch.Size, Tensor]()  # where numbers in these lay

    def loss(self, inputs: Any, targets: Any) -> Tensor:
        parts = self._parts(inputs, targets)
        if (parts or self.learner.alone) and not self.whole and self._telling(targets, parts):
            self.whole = self.learner.alone or self._tried(inputs, targets, parts)
            if self.whole:
                told = "batches are not shared, since %s: the first of %d processes takes the steps"
                log.info(told, self.whole, self.ranks.size)
        self.learner.begin_step(inputs, targets)
        return self._forward(inputs, targets, [] if self.whole else parts)

    def _telling(self, targets: Any, parts: list[Part]) -> bool:
        """Whether this batch may show what none did before; all ranks say the same."""
        self.batches += 1
        if self.whole is not None and not self.learner.own:
            return False
        whole = [each for each in tensors_in(targets) if not (each.is_floating_point() or each.is_complex())]
        few = self.tests < TESTS
        new = {int(n) for each in whole for n in each.unique()} - self.seen if few else set()
        lies = _lies([part[1] for part in parts])
        known = None if lies is None else self.lies.get(lies.shape)
        beyond = self.learner.own and lies is not None and self.ranks.agree(float(_beyond(lies, known)))
        regular = few and not self.batches & (self.batches - 1)
        if self.tests and not (new or beyond or regular):
            return False
        self.tests += 1
        self.seen |= new
        if lies is not None:
            self.lies[lies.shape] = lies if known is None else torch.maximum(lies, known)
        return True

    def _parts(self, inputs: Any, targets: Any) -> list[Part]:
        """What each rank takes; none of a batch that is too small, or of which some rank's samples count not.

        A target that does not count leaves a rank less of the mean.
        """
        size, ranks = size_of(targets, inputs), self.ranks.size
        ends = [size * k // ranks for k in range(ranks + 1)]
        places = [*zip(ends, ends[1:], strict=False)]
        if size < ranks:
            return []
        whole = self.learner.counted(targets, size)
        counts = [self.learner.counted(part_of(targets, *place), place[1] - place[0]) for place in places]
        if not all(counts) or sum(counts) != whole:
            return []
        return [
            (part_of(inputs, *place), part_of(targets, *place), count / whole)
            for place, count in zip(places, counts, strict=True)
        ]

    def _forward(self, inputs: Any, targets: Any, parts: list[Part]) -> Tensor:
        """The loss of the whole batch; where nothing is cut, the first rank takes it."""
        self.cut, failed = bool(parts), []
        given = parts[self.ranks.rank] if parts else (inputs, targets, float(self.ranks.rank == 0))
        self.lost = None
        told = torch.zeros(2, dtype=torch.float64)
        if given[2]:
            try:
                with self.norms.joined() if self.cut else nullcontext():
                    self.lost = self.learner.loss(*given[:2]) * given[2]
                told[0] = self.lost.item()
            except Exception as error:
                if self.cut and self.norms.norms:  # the others wait within a norm, and hear of it by its end
                    raise
                failed.append(error)
                told[1] = 1
        told = self.ranks.sum(told)
        if told[1]:
            self.ranks.each(_raise, failed)
        return told[0]

    def backward(self) -> None:
        super().backward()
        if (row := self.learner.slopes) is not None:
            row.copy_(self._over_all(row))
            return
        own = [p for p in self.learner.network.parameters() if p.requires_grad]
        flat = [_numbers(torch.zeros_like(p) if p.grad is None else p.grad) for p in own]
        there = torch.tensor([float(p.grad is not None) for p in own]).to(flat[0])
        there, *found = self._over_all(torch.cat([there, *flat])).split([len(own), *map(len, flat)])
        for parameter, gradient, some in zip(own, found, there.tolist(), strict=True):
            if some and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if some and parameter.grad is not None:
                _numbers(parameter.grad, gradient)

    def _over_all(self, gradients: Tensor) -> Tensor:
        if self.cut:
            return self.ranks.sum(gradients)
        return self.ranks.broadcast(gradients, source=0)

    def settle(self) -> None:
        buffers = [*self.learner.network.buffers()]
        for own, new in zip(buffers, self.ranks.first(lambda: [b.cpu() for b in buffers]), strict=True):
            own.copy_(new)

    # --------------------------------------------------------------------------------- the first batch

    def _tried(self, inputs: Any, targets: Any, parts: list[Part]) -> str:
        """Why the gradient of this batch is not that of its parts; "" where it is."""
        learner, network = self.learner, self.learner.network
        learner.begin_step(inputs, targets)
        if fails := next(filter(None, self.ranks.shared(self._fails, parts[self.ranks.rank])), ""):
            return fails
        drawn: list[bool] = []
        alone: list[list[Tensor]] = []

        def whole() -> None:
            before = _randomness(network)
            lost = Step.loss(self, inputs, targets).detach().clone()
            Step.backward(self)
            drawn.append(not torch.equal(before, _randomness(network)))
            alone.extend(self._found(lost))

        with _as_it_was(network):
            self.ranks.each(whole if self.ranks.rank == 0 else lambda: None)
        learner.begin_step(inputs, targets)
        with _as_it_was(network):
            lost = self._forward(inputs, targets, parts)
            self.backward()
            found = self._found(lost)
        if self.ranks.first(lambda: any(drawn)):
            return "the network draws random numbers, as dropout does"
        apart = self.ranks.first(lambda: any(not _near(*pair, learner.near) for pair in zip(found, alone)))  # noqa: B905
        return "the loss is no mean over samples, or a layer looks across them" if apart else ""

    def _fails(self, part: Part) -> str:
        """Why a part of a batch cannot be run; "" where it can. Before any rank waits within a norm."""
        with _as_it_was(self.learner.network), torch.no_grad():
            try:
                self.learner.loss(*part[:2])
            except RebasinError as error:
                return f"parts of one fail: {error.message}"
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # shapes, of what has no axis of samples
                return f"parts of one fail: {in_a_line(error)}"
        return ""

    def _found(self, lost: Tensor) -> list[list[Tensor]]:
        """The loss, all gradients, and what the network keeps beside its parameters."""
        network, row = self.learner.network, self.learner.slopes
        own = [p.grad for p in network.parameters() if p.grad is not None] if row is None else [row]
        return [[lost], [g.clone() for g in own], [buffer.clone() for buffer in network.buffers()]]


@contextmanager
def _as_it_was(network: nn.Module) -> Iterator[None]:
    """Seeded alike each time; afterwards randomness and buffers are as they were."""
    with seeded(0, "first batch", str(next(network.parameters()).device)), statistics_kept(network):
        yield


def _lies(parts: list[Any]) -> Tensor | None:
    """Where real targets lie, (3, numbers of a sample): how far apart parts are in the mean, −least, most.

    A weight, by whose sum a user's loss may divide, shows where the parts differ in it. Of a sample with many
    numbers it is their mean that counts, as of a mask. What is no number, as NaN for a target that nobody
    knows, counts as 0, and its share is one more. None where all targets are whole numbers.
    """
    found = []
    for ones in zip(*([t for t in tensors_in(part) if t.is_floating_point()] for part in parts), strict=True):
        rows = [_numbers_of(one.detach()) for one in ones if one.ndim and one.numel()]
        if len(rows) < len(parts):
            continue
        means = torch.stack([one.mean(0) for one in rows])
        every = torch.cat(rows)
        found.append(torch.stack([means.amax(0) - means.amin(0), -every.amin(0), every.amax(0)]))
    return torch.cat(found, 1) if found else None


def _numbers_of(targets: Tensor) -> Tensor:
    """Of every sample its numbers, or their mean, and the share of what is none, float64 (N, … + 1)."""
    rows = targets.reshape(len(targets), -1)
    told, share = _few(rows), torch.zeros(len(rows), 1)
    if not told.isfinite().all():
        known = rows.isfinite()
        told, share = _few(rows.masked_fill(~known, 0)), 1 - known.float().mean(1, keepdim=True)
    return torch.cat([told.cpu().double().nan_to_num(), share.cpu().double()], 1)


def _few(rows: Tensor) -> Tensor:
    """On their device, and in no larger numbers than a mean needs."""
    if rows.shape[1] <= COLUMNS:
        return rows
    return rows.mean(1, keepdim=True, dtype=torch.promote_types(rows.dtype, torch.float32))


def _beyond(lies: Tensor, tested: Tensor | None) -> bool:
    """Whether some number lies a quarter beyond what was tested, which a test then makes wider."""
    if tested is None:
        return True
    apart, low, high = tested
    room = torch.stack([apart, low + high, low + high]) / 4 + 1e-9 * (low.abs() + high.abs())
    return bool((lies > tested + room).any())


def _randomness(network: nn.Module) -> Tensor:
    """Where the generators stand."""
    device = next(network.parameters()).device
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    others = torch.tensor([hash((random.getstate(), str(np.random.get_state())))])
    return torch.cat([*states, others.view(torch.uint8)])


def _near(found: list[Tensor], other: list[Tensor], near: float) -> bool:
    """Whether these are the same up to rounding, all together."""
    pairs = [(a, b.to(a)) for a, b in zip(found, other, strict=True) if not torch.equal(a, b.to(a))]
    off, size = (
        sum(float(one.abs().double().square().sum()) for one in ones)
        for ones in ([a - b for a, b in pairs], [b for _, b in pairs])
    )
    return off <= near**2 * size


def _raise(failed: list[Exception]) -> None:
    for error in failed:
        raise error


def _numbers(gradient: Tensor, new: Tensor | None = None) -> Tensor:
    """All real numbers of a gradient in a row, float32 at least, or these in their place."""
    parts = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    if new is not None:
        parts.copy_(new.view(parts.shape))
    return parts.flatten().to(torch.promote_types(parts.dtype, torch.float32))
