"""A network that is run again and again in one precision, each time as if for the first time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from ..errors import NetworkError
from ..graph.float64 import in_float64
from ..networks.forward import fed, forward
from ..networks.returned import Kept, Returned
from ..networks.state import buffers_kept, fresh, own_state
from ..runtime.seeds import begin, undrawn
from . import random_weights
from .decisions import Decided, Decisions
from .distance import same_shapes
from .means import Dropping

T = TypeVar("T")


class Fails(NetworkError):
    """The network does not run in this precision on the inputs that are given."""


@dataclass(frozen=True)
class Series:
    """Batches that are run one after the other, where one alone tells nothing: their outputs are one."""

    batches: tuple[Any, ...]


class Runs:
    """The network on batches, each time as if for the first time; `last` is what it returned at last.

    `drawn` tells whether its weights are random ones, or near those that it came with.
    `give_back` makes the weights those that it came with, in this precision; `around` is how it is run.
    """

    def __init__(
        self,
        network: nn.Module,
        refresh: Callable[[], None],
        dtype: torch.dtype,
        kept: Kept,
        give_back: Callable[[], None],
    ) -> None:
        self.network, self._refresh, self.dtype, self._kept = network, refresh, dtype, kept
        self._give_back, self.drawn = give_back, True
        self.around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self.last = Returned((), (), (), ())
        self.decides: bool | None = None  # whether anything is in steps; None: it has not run yet
        self.seed = 0  # of what it draws, the same in every run
        self.decided = Decided()  # what decided on what it returned at last
        self.places: set[tuple[str, int]] = set()  # where values decided what ran, in any run
        self._drops = False  # it drops entries by chance in evaluation, too: these count as their mean
        self._written: list[torch.Tensor] = []  # parameters that the network writes into

    def draw(self, rng: torch.Generator) -> None:
        """Random weights in place of those that there are."""
        random_weights.draw(self.network, rng)
        self.drawn = True

    def near_own(self, rng: torch.Generator) -> None:
        """Weights near those that the network came with, which nothing scales; none of them is constant."""
        self._give_back()
        random_weights.stir(self.network, rng)
        self.drawn = False

    def outputs(self, inputs: Any, *, scale: bool = False) -> list[torch.Tensor]:
        """Every tensor of the network's function, in this precision; of a series each is stacked.

        `scale`: after drawn weights were scaled to size. Raises Fails where the network does, and as
        `Kept.of`.
        """
        if isinstance(inputs, Series):
            first, *others = inputs.batches
            each, decided = [self.outputs(first, scale=scale)], self.decided
            for batch in others:
                each.append(self.outputs(batch))
                decided += self.decided
            self.decided = decided
            return [torch.stack(its) for its in zip(*each, strict=True)] if same_shapes(each) else each[0]
        first = dropped = False
        decisions = None if self.decides is False else Decisions(self.network.parameters())
        try:
            with contextlib.ExitStack() as modes:
                modes.callback(self._refresh)  # a tensor that the run put in another's place is not permuted
                modes.enter_context(buffers_kept(self.network))
                modes.enter_context(undrawn())
                begin(self.seed, "a run of a proof")
                modes.enter_context(_values_kept([] if scale else self._written))
                modes.enter_context(self.around())
                if self._drops:
                    modes.enter_context(Dropping())
                if scale and self.drawn:
                    modes.enter_context(random_weights.Scaling(self.network))
                if decisions is not None:
                    modes.enter_context(decisions)
                if self.dtype is torch.float64:
                    modes.enter_context(in_float64())
                found = forward(self.network, inputs)
        except NetworkError as cause:
            raise Fails(cause.message, problems=cause.problems, hint=cause.hint) from cause
        self.last = self._kept.of(found)
        if decisions is not None:
            self.decides, self.decided = decisions.any, decisions.found(self.last.tensors)
            self.places |= decisions.places
            first = not self._written
            self._written = self._written or list(decisions.written.values())
            dropped = decisions.drops and not self._drops
            self._drops |= decisions.drops
        if dropped or (self._written and (first or scale)):
            return self.outputs(
                inputs
            )  # it computed by chance, or the next one would with what this one left
        return [self._real(tensor) for tensor in self.last.tensors]

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = real_view(tensor.resolve_conj())
        whole = whole if whole.layout is torch.strided else whole.to_dense()
        return whole.to(self.dtype).clone()


@contextlib.contextmanager
def _values_kept(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """What a run writes into these is taken back, unseen by gradients."""
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, values in zip(tensors, kept, strict=True):
            tensor.data.copy_(values)


def in_finest(network: nn.Module, inputs: Any, kept: Kept, work: Callable[[Runs, Any], T]) -> T:
    """What `work` makes of a network's runs and its inputs: in float64, or float32 where an operation fails.

    Some operations know no float64, such as products of matrices in groups. The network computes on copies of
    its tensors, without gradients, and is as it was afterwards. Raises NetworkError where it runs in neither.
    """

    def in_precision(dtype: torch.dtype) -> T:
        with fresh(network, inputs) as refresh, own_state(network, dtype) as give_back, torch.no_grad():
            runs = Runs(network, refresh, dtype, kept, give_back)
            return work(runs, fed(network, inputs, "cpu", quiet=True))

    try:
        return in_precision(torch.float64)
    except Fails as cause:
        with contextlib.suppress(Fails):
            return in_precision(torch.float32)
        raise NetworkError(cause.message, problems=cause.problems, hint=cause.hint) from cause


def real_view(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
