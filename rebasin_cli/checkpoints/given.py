"""Models as a program hands them over: mappings of names to tensors or arrays, lists of arrays with names.

Whatever is worked on is tensors; what is given back is what came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError
from ..types import Tensors, is_lazy
from .tensors import odd

Values = Tensor | np.ndarray
Model = Mapping[str, Values] | Sequence[Values]


def named(models: Iterable[Model], names: Sequence[str] | None) -> list[Mapping[str, Values]]:
    """The models as mappings: the values of a list get these names, in their order.

    Raises UsageError for a list without names, or with another number of them.
    """
    if isinstance(models, Mapping | Tensor | np.ndarray):
        kind = "mapping" if isinstance(models, Mapping) else type(models).__name__
        raise UsageError(f"the models are one {kind}", hint="Give a list of state dicts: [a, b]")
    found: list[Mapping[str, Values]] = []
    names = None if names is None else [*names]
    for number, model in enumerate(models, start=1):
        if isinstance(model, Mapping) or not isinstance(model, list | tuple):
            if names is not None:
                raise UsageError(
                    f"model {number} is of type {type(model).__name__}, and `names` are for lists of arrays",
                    hint="Leave `names` out for mappings",
                )
            found.append(cast(Mapping[str, Values], model))  # what is none is refused where it is used
            continue
        if names is None:
            raise UsageError(
                f"model {number} is a {type(model).__name__}: nothing says what its {len(model)} values are",
                hint="Name them in their order: names=[*network.state_dict()]",
            )
        if len({*names}) < len(names):
            twice = next(name for name in names if [*names].count(name) > 1)
            raise UsageError(f"two of the names are {twice!r}", hint="Give every value a name of its own")
        if len(model) != len(names):
            raise UsageError(f"model {number} has {len(model)} values, and there are {len(names)} names")
        found.append(dict(zip(names, model, strict=True)))
    return found


def plain(models: Iterable[Mapping[str, Values]]) -> list[Tensors]:
    """The models as tensors, without their gradients' history; arrays share their memory where they can.

    Raises UsageError for what is no mapping to tensors with values: from the meta device, sparse, nested.
    """
    return [_plain(number, model) for number, model in enumerate(named(models, None), start=1)]


def _plain(number: int, model: Any) -> Tensors:
    if not isinstance(model, Mapping):
        raise UsageError(
            f"model {number} is of type {type(model).__name__}, not a mapping of names to tensors",
            hint="Give a state dict: network.state_dict(), or rebasin_cli.open_checkpoint(path)",
        )
    tensors: Tensors = model
    if is_lazy(model):  # read when asked for
        return tensors
    wrong = [f"{name!r}  is no name" for name in model if not isinstance(name, str)]
    made: dict[str, Tensor] = {}
    for name, value in model.items():
        tensor = _tensor(value)
        if isinstance(tensor, Tensor):
            made[name] = tensor
        else:
            wrong.append(f"{name}  {tensor}")
    if wrong:
        raise UsageError(f"model {number} is not a mapping of names to tensors", problems=wrong)
    if unusable := [f"{name}  {why}" for name, tensor in made.items() if (why := odd(tensor))]:
        raise UsageError(
            f"model {number} has tensors without plain values",
            problems=unusable,
            hint="Load its weights first: what is on the meta device is a plan of a model",
        )
    return model if all(value is model[name] for name, value in made.items()) else made


def _tensor(value: Any) -> Tensor | str:
    """The value as a tensor, or what it is instead."""
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    if isinstance(value, np.ma.MaskedArray):
        return "is a masked array: some of its values are none"
    if not isinstance(value, np.ndarray | np.generic):
        return f"is of type {type(value).__name__}"
    array = np.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):  # torch takes neither
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:  # text, objects, and numbers that torch has no type for
        return f"is an array of {array.dtype}"


def as_given(
    tensors: Tensors, like: Mapping[str, Values], *, listed: bool
) -> dict[str, Values] | list[Values]:
    """The tensors as `like` has its own: arrays where it has arrays; `listed` without their names."""
    arrays = all(isinstance(value, np.ndarray | np.generic) for value in like.values())
    made = {name: tensor.numpy() if arrays else tensor for name, tensor in tensors.items()}
    return [*made.values()] if listed else made
