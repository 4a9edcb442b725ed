"""The whole canonical form of one model: folded, then balanced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..checkpoints.tensors import LazyTensors, Room, held, overlaid, plan_of, replaced
from ..errors import CheckpointError, SpecError
from ..spec.notation import Axis, Word, leaves_of, words_of
from ..spec.spec import FittedSpec
from ..types import Tensors
from .action import act
from .balanced import balance
from .elements import Elements, acted, check_dtypes, compose, maps_of
from .folding import folded
from .folds import NONE, Folds


@dataclass(frozen=True)
class Canonical:
    """`tensors` in the model's own dtypes; `balance` is the element that was applied after folding.

    `changed` are the tensors that folding or balancing touched, in float64: what comes next begins with them.
    `left` has (what, why) of all that stays as it was. Tensors are made from the model's whenever they are
    asked for, and none is held.
    """

    tensors: Tensors
    changed: Mapping[str, torch.Tensor]
    balance: Elements
    left: tuple[tuple[str, str], ...]

    @property
    def wide(self) -> Tensors:
        """The same without rounding: the changed tensors in float64."""
        return overlaid(self.tensors, self.changed)


def canonical(tensors: Tensors, fitted: FittedSpec, folds: Folds = NONE) -> Canonical:
    """The canonical form of a model. The input is untouched, and read again for what is asked for.

    Where nothing is folded and all words only permute, it is the model itself.

    Raises CheckpointError where numbers would be folded or turned that are integers or quantised, and
    SpecError where what a rotated word only orders is not folded.
    """
    plan = plan_of(tensors)
    check_numbers({name: dtype for name, (dtype, _) in plan.items()}, fitted, folds)
    first = folded(tensors, folds)
    begun = overlaid(tensors, first)
    check_even(begun, fitted)
    found, left = balance(begun, fitted)
    maps = maps_of(found)
    moved = [
        n for n, axes in fitted.tensors.items() if any(w in maps for axis in axes for w in words_of(axis))
    ]
    names = dict.fromkeys((*first, *moved))
    if not names:
        return Canonical(tensors, {}, found, (*folds.left, *left.items()))
    shapes = {name: plan[name][1] for name in names}

    def wide(name: str) -> torch.Tensor:
        return act(begun[name].double(), fitted.tensors.get(name, ()), fitted, maps)

    def own(name: str) -> torch.Tensor:
        return _rounded(name, changed[name], plan[name][0])

    changed = LazyTensors(shapes, dict.fromkeys(names, torch.float64), wide)
    rounded = LazyTensors(shapes, {name: plan[name][0] for name in names}, own)
    for name in names:
        if plan[name][0] is torch.float16:  # who gives what it cannot hold is told at once
            own(name)
    return Canonical(replaced(tensors, rounded), changed, found, (*folds.left, *left.items()))


class Forms:
    """Models in canonical form, and what elements that were found there make of the models as they are.

    Of permutations alone, where nothing is folded, the form is the models themselves.
    """

    def __init__(self, models: Sequence[Tensors], fitted: FittedSpec, folds: Folds = NONE):
        self.models, self.fitted, self.folds = models, fitted, folds
        self.each = [canonical(model, fitted, folds) for model in models]

    @property
    def changed(self) -> bool:
        """Whether a number of some model is another one there."""
        return any(form.changed for form in self.each)

    def held(self, *, computed: bool, room: int | None = None) -> tuple[Tensors, ...]:
        """The models; what is computed is computed once, if `computed`.

        Of all of them together `room` bytes are kept: the rest is read whenever it is asked for.
        """
        shared = Room() if room is None else Room(room)
        return tuple(held(form.tensors, computed=computed, room=shared) for form in self.each)

    def whole(self, elements: Sequence[Elements]) -> tuple[Elements, ...]:
        """With the balance of each model: an element a model after the first, of what is folded only."""
        pairs = zip(self.each[1:], elements, strict=True)
        return tuple(compose(form.balance, element, self.fitted) for form, element in pairs)

    def standing(self, whole: Sequence[Elements]) -> tuple[Tensors, ...]:
        """All models, the first in its form, the others as their whole elements make them."""
        return standing(self.models, self.fitted, whole, self.folds, first=self.each[0])


def standing(
    models: Sequence[Tensors],
    fitted: FittedSpec,
    whole: Sequence[Elements],
    folds: Folds = NONE,
    *,
    first: Canonical | None = None,
) -> tuple[Tensors, ...]:
    """The first model in canonical form (`first`, where it is known), the others as their elements make them.

    `whole` has an element a model after the first. Raises as `canonical`.
    """
    first = first or canonical(models[0], fitted, folds)
    pairs = zip(models[1:], whole, strict=True)
    return (first.tensors, *(turned(model, fitted, element, folds) for model, element in pairs))


def check_numbers(dtypes: Mapping[str, torch.dtype], fitted: FittedSpec, folds: Folds) -> None:
    """Raise CheckpointError where numbers would be folded or turned that are integers or quantised."""
    of = {name: dtypes[name] for name in sorted(folds.tensors)}
    names = [name for name, dtype in of.items() if dtype.itemsize == 1 or not dtype.is_floating_point]
    if names:
        raise CheckpointError(
            "integers and quantised numbers can be permuted, not folded",
            problems=[f"{name}  {str(dtypes[name]).removeprefix('torch.')}" for name in names],
            hint="Match by --groups permutations, or give the weights as they were before quantisation",
        )
    check_dtypes(dtypes, fitted, fitted.groups.keys())


def constant(fitted: FittedSpec) -> frozenset[str]:
    """Tensors that a rotated word only orders: in canonical form they hold equal numbers."""
    return frozenset(name for name, axes in fitted.tensors.items() if _still(axes, fitted))


def check_even(tensors: Tensors, fitted: FittedSpec) -> None:
    """Raise SpecError where what a rotated word only orders does not hold equal numbers along it."""
    uneven = [
        f"{name}  differs along axis {axis}"
        for name in sorted(constant(fitted) & tensors.keys())
        for axis in _still(fitted.tensors[name], fitted)
        if (tensors[name] != tensors[name].narrow(axis, 0, 1)).any()
    ]
    if uneven:
        raise SpecError(
            "rotations of units need norms that are folded away, or they change the network's function",
            problems=uneven,
            hint="A spec of your own claims a group that these weights do not have. In Python give the folds "
            "of the network: found = rebasin_cli.infer_spec(network, inputs, groups=True), folds=found.folds",
        )


def _still(axes: Sequence[Axis], fitted: FittedSpec) -> list[int]:
    """Axes along which a rotated word only orders."""
    return [
        k
        for k, axis in enumerate(axes)
        for leaf in leaves_of(axis)
        if isinstance(leaf, Word) and leaf.side == "|" and fitted.group(leaf.name).matrix
    ]


def turned(tensors: Tensors, fitted: FittedSpec, elements: Elements, folds: Folds = NONE) -> Tensors:
    """What elements make of a model, folded before: rounded once, to its own dtypes; the input is untouched.

    Of orders alone, where nothing is folded, all only moves. Raises CheckpointError as `canonical`.
    """
    if folds == NONE and not elements.maps:
        return acted(tensors, fitted, elements)
    plan = plan_of(tensors)
    dtypes = {name: dtype for name, (dtype, _) in plan.items()}
    check_numbers(dtypes, fitted, folds)
    wide = acted(overlaid(tensors, folded(tensors, folds)), fitted, elements)
    return LazyTensors(
        {n: s for n, (_, s) in plan.items()}, dtypes, lambda name: _rounded(name, wide[name], dtypes[name])
    )


def _rounded(name: str, wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Raises CheckpointError for what is more than the dtype holds."""
    if wide.dtype == dtype:  # nothing was computed: float8 may be here, which has no isinf
        return wide
    own = wide.to(dtype)
    if dtype.is_floating_point and (beyond := own.isinf() & wide.isfinite()).any():
        raise CheckpointError(
            f"{name} would hold {wide[beyond].flatten()[0].item():g}, more than "
            f"{str(dtype).removeprefix('torch.')} holds, once norms are folded and products balanced",
            hint="Give the weights as float32, or match by --groups permutations",
        )
    return own
