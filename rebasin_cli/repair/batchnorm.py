"""BatchNorm's running statistics, measured again.

The average of two models has other activations than either, so the averages of their running means and
variances describe neither; they are measured again on training data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from .. import networks
from ..datasets.batches import checked, tensors_in
from ..networks.folding import NORMS
from ..networks.forward import evaluating, fed, forward
from ..networks.layout import laid, takes_last
from ..types import Batches

SLAB = 1 << 18  # numbers that are summed at once
OFF = 100  # a mean square so many times the variance: digits are lost between them, and it is summed anew


def reset(network: nn.Module, batches: Batches, *, device: str | torch.device = "cpu") -> int:
    """Re-estimate every running mean and variance as the average over batches; weights stay as they are.

    The network is on `device` and is changed in place. The average is cumulative, each batch counts the
    same; a single sample after larger batches is left out, since BatchNorm may refuse it. Returns the number
    of norms reset. Raises DataError for data without batches.

    Izmailov et al. 2018, section 3; of merged models Jordan et al. 2023 (REPAIR), arXiv:2211.08403.
    """
    norms = list(networks.running_norms(network).values())
    if not norms:
        return 0
    momenta = {norm: norm.momentum for norm in norms}
    watched: list[Watched] | None = None
    seen = largest = 0
    try:
        with evaluating(network), torch.no_grad():
            for inputs, _ in checked(batches):
                size = max((len(tensor) for tensor in tensors_in(inputs) if tensor.ndim), default=0)
                largest = max(largest, size)
                if size == 1 < largest:
                    continue
                inputs = fed(network, inputs, device)
                if watched is None:
                    watched = _begun(network, norms, inputs)
                for norm in norms:  # a cumulative average: None says so, but InstanceNorm takes it for 0
                    norm.momentum = None if isinstance(norm, _BatchNorm) else 1 / (seen + 1)
                forward(network, laid(network, inputs) if watched else inputs)
                seen += 1
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
        for each in watched or []:
            each.leave()
    return len(norms)


def _begun(network: nn.Module, norms: list[_NormBase], inputs: Any) -> list[Watched]:
    """Norms in training, which measure themselves; or watched, where inputs lie channels last.

    PyTorch then sums their statistics one value after the other, in float32.
    """
    last = all(type(norm) in NORMS for norm in norms) and takes_last(network, inputs)
    for norm in norms:
        norm.reset_running_stats()
        norm.training = not last  # only the norms: dropout stays off
    return [Watched(norm) for norm in norms] if last else []


class Watched:
    """A norm in evaluation mode that is given each batch's own statistics before it sees the batch."""

    def __init__(self, norm: _NormBase):
        self.norm, self.runs = norm, 0
        self.mean = self.variance = torch.zeros((), dtype=torch.float64)
        self._handle = norm.register_forward_pre_hook(self._measure)

    def _measure(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        rows = given[0].movedim(1, -1).flatten(0, -2)
        count = len(rows)
        if count < 2:
            raise ValueError(f"one value a channel has no variance: inputs {tuple(given[0].shape)}")
        mean, variance = moments(rows)
        self._set(mean, variance)
        self.runs += 1
        self.mean = self.mean + mean
        self.variance = self.variance + variance * (count / (count - 1))

    def _set(self, mean: Tensor, variance: Tensor) -> None:
        for own, new in ((self.norm.running_mean, mean), (self.norm.running_var, variance)):
            if own is not None:
                own.copy_(new)

    def leave(self) -> None:
        """The averages over all runs become the norm's statistics."""
        self._handle.remove()
        if self.runs:
            self._set(self.mean / self.runs, self.variance / self.runs)
            if self.norm.num_batches_tracked is not None:
                self.norm.num_batches_tracked.fill_(self.runs)


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of the columns of (n, channels): mean and variance (that of the samples, not corrected), float64."""
    mean, square = _means(rows, lambda part: (part, part.square()))
    variance = square - mean**2
    if bool((mean**2 > OFF * variance).any()):
        off = mean.to(rows)
        (variance,) = _means(rows, lambda part: ((part - off).square(),))
    return mean, variance


def _means(rows: Tensor, functions: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
    """Of each function's values by columns, float64; a slab at a time, which stays in the caches."""
    slabs = rows.split(max(1, SLAB // max(1, rows.shape[1])))
    sums = ([part.sum(0).double() for part in functions(slab)] for slab in slabs)
    return [sum(each) / len(rows) for each in zip(*sums, strict=True)]
