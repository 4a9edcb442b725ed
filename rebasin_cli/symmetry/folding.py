"""The steps that fold gains and biases away, on numbers; `inference.groups.folds` says where they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from ..checkpoints.tensors import LazyTensors, plan_of
from ..errors import CheckpointError
from ..types import Tensors
from .folds import Folds, Norm, Part, Reader, ValueBias

Step = Callable[[torch.Tensor], object]  # writes to the tensor that it is given


def folded(tensors: Tensors, folds: Folds) -> LazyTensors:
    """The tensors that change, in float64: norms' gains 1 and biases 0, key and value biases 0, means 0.

    Vectors are changed here. A matrix is made whenever it is asked for, from the tensor of its name alone,
    and none is held.
    """
    work = _Work(tensors)
    for norm in folds.norms:
        _norm(work, norm)
    for bias in folds.values:
        _value(work, bias)
    for part in folds.keys:
        work.change(part.tensor, partial(_clear, part))
    for name, axis in folds.means:
        work.change(name, partial(_center, axis))
    shapes = {name: work.shapes[name] for name in work.steps}
    return LazyTensors(shapes, dict.fromkeys(shapes, torch.float64), lambda name: work[name].clone())


class _Work:
    """Tensors as they become, in float64: vectors are held, of matrices only the steps, in their order."""

    def __init__(self, tensors: Tensors):
        self.tensors = tensors
        self.shapes = {name: shape for name, (_, shape) in plan_of(tensors).items()}
        self.steps: dict[str, list[Step]] = {}
        self.vectors: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        """Not to be written to."""
        steps = self.steps.setdefault(name, [])
        if name in self.vectors:
            return self.vectors[name]
        tensor = self.tensors[name].detach().cpu().to(torch.float64, copy=True)
        for step in steps:
            step(tensor)
        if tensor.ndim <= 1:
            self.vectors[name] = tensor
        return tensor

    def change(self, name: str, step: Step) -> None:
        """Let `step` write to a tensor: at once, or whenever it is asked for."""
        if len(self.shapes[name]) <= 1:
            step(self[name])
        else:
            self.steps.setdefault(name, []).append(step)


def _clear(part: Part, tensor: torch.Tensor) -> None:
    _entries(tensor, part).zero_()


def _center(axis: int, tensor: torch.Tensor) -> None:
    tensor.sub_(tensor.mean(axis, keepdim=True))


def _multiply(by: torch.Tensor, tensor: torch.Tensor) -> None:
    tensor.mul_(by)


def _entries(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    return tensor.narrow(0, part.start, part.length)


def _norm(work: _Work, norm: Norm) -> None:
    if norm.free and norm.weight is not None and norm.bias is not None:
        _over(work, norm.weight, norm.bias, norm.readers)
    elif norm.bias is not None and not norm.free:
        for reader in norm.readers:
            _through(work, work[norm.bias], reader)
        work.change(norm.bias, torch.Tensor.zero_)
    if norm.weight is not None:
        gain = work[norm.weight].clone()
        for reader in norm.readers:
            along = gain.view(-1, *[1] * (len(work.shapes[reader.weight]) - reader.axis - 1))
            work.change(reader.weight, partial(_multiply, along))
        work.change(norm.weight, lambda t: t.fill_(1))


def _over(work: _Work, weight: str, own_bias: str, readers: Sequence[Reader]) -> None:
    """g·x + b is g·(x + b/g). Raises CheckpointError where a gain is 0 and its bias is not."""
    gain, bias = work[weight], work[own_bias]
    if bool(((gain == 0) & (bias != 0)).any()):
        raise CheckpointError(
            f"{weight} cannot be folded away: it is 0 where {own_bias} is not",
            problems=[f"{reader.weight}  has no bias to take that up" for reader in readers],
            hint="Match by --groups permutations, or give these layers biases of 0",
        )
    over = torch.where(gain == 0, 0.0, bias / gain)
    work.change(own_bias, lambda t: t.copy_(over))


def _value(work: _Work, bias: ValueBias) -> None:
    part = _entries(work[bias.part.tensor], bias.part)
    blocks = part.view(-1, 1, bias.size).expand(-1, bias.times, -1)
    _through(work, blocks.reshape(-1), bias.reader)
    work.change(bias.part.tensor, partial(_clear, bias.part))


def _through(work: _Work, vector: torch.Tensor, reader: Reader) -> None:
    """What a constant input adds to the outputs of a layer, moved into its bias."""
    given = torch.tensordot(work[reader.weight], vector, ([reader.axis], [0]))
    assert reader.bias is not None  # else the fold was left out
    work.change(reader.bias, lambda t: t.add_(given))
