"""Averages looked through while they are made: what is no number is laid to the model that has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from ..checkpoints.checking import finite, validate
from ..checkpoints.tensors import LazyTensors, plan_of
from ..errors import UsageError
from ..types import Tensors


def finite_only(
    tensors: LazyTensors,
    averaged: Collection[str],
    models: Sequence[Tensors],
    names: Sequence[str],
    begin: Callable[[str], None] = lambda name: None,
) -> LazyTensors:
    """The same tensors. Making one of `averaged` that is not finite raises an error; `begin` is told before.

    CheckpointError where one of the `models` has no number there, which is called by its name in `names`;
    UsageError where the sum is beyond the range of the dtype. The models are read again only then.
    """

    def look(name: str, made: Tensor) -> Tensor:
        begin(name)
        if name in averaged and not finite(made):
            for model, called in zip(models, names, strict=True):
                if name in model:
                    validate(_only(model, name), name=called)
            raise UsageError(
                f"{name}: the average is beyond the range of {made.dtype}",
                hint="Use --out-dtype bfloat16 or float32.",
            )
        return made

    return LazyTensors(
        tensors.shapes,
        tensors.dtypes,
        lambda name: look(name, tensors[name]),
        lambda name, start, stop: look(name, tensors.rows(name, start, stop)),
    )


def _only(model: Tensors, name: str) -> LazyTensors:
    dtype, shape = plan_of(model)[name]
    return LazyTensors({name: shape}, {name: dtype}, lambda name: model[name])
