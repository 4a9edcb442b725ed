"""The whole canonical form of one model: folded, then balanced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..checkpoints.tensors import LazyTensors, plan_of, replaced
from ..errors import CheckpointError
from ..groups.elements import Elements, act, acted, check_dtypes, maps_of
from ..groups.folds import Folds
from ..spec.notation import words_of
from ..spec.spec import FittedSpec
from .balancing import balance
from .folding import folded

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Canonical:
    """`tensors` in the model's own dtypes; `balance` is the element that was applied after folding.

    `changed` are the tensors that folding or balancing touched, in float64: what comes next begins with them.
    `left` has (what, why) of all that stays as it was.
    """

    tensors: Tensors
    changed: Mapping[str, torch.Tensor]
    balance: Elements
    left: tuple[tuple[str, str], ...]

    @property
    def wide(self) -> Tensors:
        """The same without rounding: the changed tensors in float64."""
        return {name: self.changed.get(name, self.tensors[name]) for name in self.tensors}


def canonical(tensors: Tensors, fitted: FittedSpec, folds: Folds) -> Canonical:
    """The canonical form of a model. The input is untouched.

    Raises CheckpointError where numbers would be folded or turned that are integers or quantised.
    """
    check_numbers({name: dtype for name, (dtype, _) in plan_of(tensors).items()}, fitted, folds)
    changed = folded(tensors, folds)
    found, left = balance({**tensors, **changed}, fitted)
    maps = maps_of(found)
    for name, axes in fitted.tensors.items():
        if any(word in maps for axis in axes for word in words_of(axis)):
            changed[name] = act(changed.get(name, tensors[name]).double(), axes, fitted, maps)
    own = {name: _rounded(name, tensor, tensors[name].dtype) for name, tensor in changed.items()}
    return Canonical(replaced(tensors, own), changed, found, (*folds.left, *left.items()))


def check_numbers(dtypes: Mapping[str, torch.dtype], fitted: FittedSpec, folds: Folds) -> None:
    """Raise CheckpointError where numbers would be folded or turned that are integers or quantised."""
    whole = (d.itemsize == 1 or not d.is_floating_point for d in map(dtypes.get, sorted(folds.tensors)))
    names = [name for name, integer in zip(sorted(folds.tensors), whole, strict=True) if integer]
    if names:
        raise CheckpointError(
            "integers and quantised numbers can be permuted, not folded",
            problems=[f"{name}  {str(dtypes[name]).removeprefix('torch.')}" for name in names],
            hint="Match by --groups permutations, or give the weights as they were before quantisation",
        )
    check_dtypes(dtypes, fitted, Elements({}, dict.fromkeys(fitted.groups)))


def moved_by(form: Canonical, fitted: FittedSpec, elements: Elements) -> Tensors:
    """What an element makes of a model in canonical form: rounded once, to the model's own dtypes."""
    wide = acted(form.wide, fitted, elements)
    plan = plan_of(form.tensors)
    dtypes = {name: dtype for name, (dtype, _) in plan.items()}
    return LazyTensors(
        {n: s for n, (_, s) in plan.items()}, dtypes, lambda name: _rounded(name, wide[name], dtypes[name])
    )


def _rounded(name: str, wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Raises CheckpointError for what is more than the dtype holds."""
    own = wide.to(dtype)
    if dtype.is_floating_point and (beyond := own.isinf() & wide.isfinite()).any():
        raise CheckpointError(
            f"{name} would hold {wide[beyond].flatten()[0].item():g}, more than "
            f"{str(dtype).removeprefix('torch.')} holds, once norms are folded and products balanced",
            hint="Give the weights as float32, or match by --groups permutations",
        )
    return own
