"""Numbers that a user's function, or his network, gives: read with care, and told where they are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets.batches import describe, tensors_in
from ..errors import NetworkError
from ..registry import user_code
from ..runtime.text import many
from ..types import Quantity
from .forward import versions
from .returned import leaves_of


def is_number(value: Any) -> bool:
    """Whether it is one number."""
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) or (hasattr(value, "__float__") and not hasattr(value, "__len__"))


def sound(outputs: Any, count: int) -> Tensor:
    """Of which samples all outputs are numbers, bool (N,)."""
    found = torch.ones(count, dtype=torch.bool)
    for tensor in tensors_of(outputs):
        if tensor.is_floating_point() and not (known := tensor.isfinite()).all():
            own = tensor.ndim > 0 and len(tensor) == count
            found &= (
                known.flatten(1).all(1).cpu() if own and tensor.ndim > 1 else known.cpu() if own else False
            )
    return found


def kind_of(outputs: Any, targets: Any) -> tuple[Any, ...]:
    """What outputs and targets are, but for how many samples there are."""
    tensors = (*tensors_of(outputs), *tensors_in(targets))
    return tuple((tensor.dtype, tensor.ndim, tensor.shape[1:]) for tensor in tensors)


def number_of(value: Any, quantity: Quantity, count: int, number: int) -> Tensor:
    """What a function gave, float64 (N,) or (). Raises NetworkError for anything else."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.array(value, np.float64))
    if not isinstance(value, Tensor):
        if is_number(value):
            return torch.tensor(float(value), dtype=torch.float64)
        raise NetworkError(
            f"batch {number}: {quantity.name} is {describe(value)}",
            hint="Expected one number, the mean of the batch, or a tensor (N,), one number a sample",
        )
    if value.ndim and value.shape != (count,):
        wide, of = value.ndim > 1 and len(value) == count, many(count, "sample")
        raise NetworkError(
            f"batch {number}: {quantity.name} is {describe(value)}, and the batch has {of}",
            hint="Expected one number a sample, (N,): take the mean of the rest, values.flatten(1).mean(1)"
            if wide
            else "Expected one number, the mean of the batch, or a tensor (N,), one number a sample",
        )
    return value.detach().cpu().double()


def finite(outputs: Any) -> bool:
    """Whether all numbers that a network returned are."""
    return all(bool(t.isfinite().all()) for t in tensors_of(outputs) if t.is_floating_point())


def tensors_of(outputs: Any) -> list[Tensor]:
    return [leaf.tensor for leaf in leaves_of(outputs) if leaf.tensor is not None]


@contextmanager
def reading(name: str, number: int, outputs: Any, targets: Any) -> Iterator[None]:
    """While a user's function reads these. Raises NetworkError where it fails, or writes into them."""
    own = {"outputs": tensors_of(outputs), "targets": [*tensors_in(targets)]}
    before = {what: versions(tensors) for what, tensors in own.items()}
    with user_code(
        f"{name} fails on batch {number}",
        hint=lambda: f"It is called with outputs, {describe(outputs)}, and then targets, {describe(targets)}",
    ):
        yield
    if wrote := [what for what, tensors in own.items() if versions(tensors) != before[what]]:
        raise NetworkError(
            f"{name} writes into the {' and '.join(wrote)} of batch {number}, which others read after it",
            hint=f"Let it write into a copy: {wrote[0]} = {wrote[0]}.clone()",
        )


def own_loss(outputs: Any, number: int) -> Tensor:
    """The `loss` that a network returned, whose targets went in with the inputs. Raises NetworkError."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if not isinstance(found, Tensor):
        raise NetworkError(
            f"batch {number}: the network was given its targets, and returns no loss",
            hint="Name one with --loss file.py:function",
        )
    return found
