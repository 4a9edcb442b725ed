"""Norms that measure a batch of which every rank has a part: their statistics are those of the whole batch.

A pass of a norm takes one sum over all ranks forward, and one backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..runtime.devices import has_float64
from ..runtime.ranks import Ranks
from .folding import NORMS
from .layout import plain


class SharedNorms:
    """The norms of a network, which measure together what all `ranks` run within `with norms.joined():`.

    They are PyTorch's batch norms, as they are: any other measures its own part alone. Ranks run them in the
    same order, as they do the rest of one network.
    """

    def __init__(self, network: nn.Module, ranks: Ranks):
        self.ranks = ranks
        self.norms: list[Any] = [module for module in network.modules() if plain(module, NORMS)]

    @contextmanager
    def joined(self) -> Iterator[None]:
        for norm in self.norms:
            norm.forward = lambda values, norm=norm: self._normalized(norm, values)
        try:
            yield
        finally:
            for norm in self.norms:
                del norm.forward

    def _normalized(self, norm: Any, values: Tensor) -> Any:
        if not norm.training and norm.running_mean is not None:
            return type(norm).forward(norm, values)
        norm._check_input_dim(values)
        normalized: Any = _Normalized.apply
        found, mean, variance, count = normalized(values, norm.weight, norm.bias, norm.eps, self.ranks)
        if norm.running_mean is not None:
            norm.num_batches_tracked.add_(1)
            share = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            for kept, new in (
                (norm.running_mean, mean),
                (norm.running_var, variance * (count / (count - 1))),
            ):
                kept.mul_(1 - share).add_(new.to(kept), alpha=share)
        return found


class _Normalized(torch.autograd.Function):
    """A batch norm in training, of this rank's part of a batch (N, channels, …).

    Also the mean and variance (not corrected) of the whole batch, and of how many values a channel.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, ranks: Ranks
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        axes = [0, *range(2, values.ndim)]
        own = values.float() if values.dtype.itemsize < 4 else values
        wide = torch.float64 if has_float64(values.device) else torch.float32
        variance, mean = (one.to(wide) for one in torch.var_mean(own, axes, correction=0))
        number = values.numel() // values.shape[1]
        sums = ranks.sum(number * torch.stack([torch.ones_like(mean), mean, variance + mean.square()]))
        count = sums[0, 0]
        mean, square = sums[1:] / count
        variance = (square - mean.square()).clamp(min=0)
        if count < 2:
            raise ValueError(f"one value a channel has no variance: inputs {tuple(values.shape)}")
        ctx.save_for_backward(values, weight, mean, (variance + eps).rsqrt())
        ctx.count, ctx.ranks, ctx.wide = count, ranks, wide
        found = F.batch_norm(values, mean.to(own), variance.to(own), weight, bias, False, 0.0, eps)
        ctx.mark_non_differentiable(mean, variance, count)
        return found, mean, variance, count

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *others: Any) -> tuple[Tensor | None, ...]:
        values, weight, mean, inverse = ctx.saved_tensors
        axes = [0, *range(2, values.ndim)]
        slope, own = ((one.float() if one.dtype.itemsize < 4 else one) for one in (slope, values))
        shape = (1, -1) + (1,) * (values.ndim - 2)
        normed = (own - mean.to(own).view(shape)) * inverse.to(own).view(shape)
        here = torch.stack([slope.sum(axes), (slope * normed).sum(axes)])
        of_values = None
        if ctx.needs_input_grad[0]:
            even, along = (
                one.to(own).view(shape) for one in ctx.ranks.sum(here.to(ctx.wide, copy=True)) / ctx.count
            )
            scale = inverse.to(own) if weight is None else inverse.to(own) * weight
            of_values = ((slope - even - normed * along) * scale.view(shape)).to(values.dtype)
        of_weight = None if weight is None else here[1].to(weight.dtype)
        return of_values, of_weight, None if weight is None else here[0].to(weight.dtype), None, None
