"""The steps that fold gains and biases away, on numbers; `inference.folds` says where they hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..errors import CheckpointError
from ..groups.folds import Folds, Norm, Part, Reader, ValueBias

Tensors = Mapping[str, torch.Tensor]


def folded(tensors: Tensors, folds: Folds) -> dict[str, torch.Tensor]:
    """The tensors that change, in float64: norms' gains 1 and biases 0, key and value biases 0, means 0."""
    work = _Work(tensors)
    for norm in folds.norms:
        _norm(work, norm)
    for bias in folds.values:
        _value(work, bias)
    for part in folds.keys:
        work.part(part).zero_()
    for name, axis in folds.means:
        tensor = work[name]
        tensor -= tensor.mean(axis, keepdim=True)
    return work.changed


class _Work:
    """Tensors that are written to as float64 copies of their own."""

    def __init__(self, tensors: Tensors):
        self.tensors, self.changed = tensors, {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.changed:
            self.changed[name] = self.tensors[name].detach().cpu().to(torch.float64, copy=True)
        return self.changed[name]

    def part(self, part: Part) -> torch.Tensor:
        return self[part.tensor].narrow(0, part.start, part.length)


def _norm(work: _Work, norm: Norm) -> None:
    if norm.free and norm.weight is not None:
        _over(work, norm)
    elif norm.bias is not None and not norm.free:
        for reader in norm.readers:
            _through(work, work[norm.bias], reader)
        work[norm.bias].zero_()
    if norm.weight is not None:
        for reader in norm.readers:
            weight = work[reader.weight]
            weight *= work[norm.weight].view(-1, *[1] * (weight.ndim - reader.axis - 1))
        work[norm.weight].fill_(1)


def _over(work: _Work, norm: Norm) -> None:
    """g·x + b is g·(x + b/g). Raises CheckpointError where a gain is 0 and its bias is not."""
    gain, bias = work[norm.weight], work[norm.bias]
    if bool(((gain == 0) & (bias != 0)).any()):
        raise CheckpointError(
            f"{norm.weight} cannot be folded away: it is 0 where {norm.bias} is not",
            problems=[f"{reader.weight}  has no bias to take that up" for reader in norm.readers],
            hint="Match by --groups permutations, or give these layers biases of 0",
        )
    bias.copy_(torch.where(gain == 0, 0.0, bias / gain))


def _value(work: _Work, bias: ValueBias) -> None:
    part = work.part(bias.part)
    blocks = part.view(-1, 1, bias.size).expand(-1, bias.times, -1)
    _through(work, blocks.reshape(-1), bias.reader)
    part.zero_()


def _through(work: _Work, vector: torch.Tensor, reader: Reader) -> None:
    """What a constant input adds to the outputs of a layer, moved into its bias."""
    work[reader.bias].add_(torch.tensordot(work[reader.weight], vector, ([reader.axis], [0])))
