"""Elements on factors of low rank: a weight's outputs are those of the upper factor, its inputs the lower's.

A weight W' = M·W·Nᵀ with W = W₀ + B·A has B' = M·B and A' = A·Nᵀ, so the rank stays. Factors are given to the
same steps as weights are, as tensors with one axis of the weight each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ..checkpoints.tensors import over, plan_of
from ..errors import SpecError
from ..spec.notation import Axis, Fixed
from ..spec.spec import FittedSpec
from ..types import Tensors
from .elements import Elements
from .folds import Folds, Norm, Reader
from .form import turned
from .index_maps import elsewhere


@dataclass(frozen=True)
class Pair:
    """The names of the factors of one `weight`, which is stored as (inputs, outputs) if it is `turned`."""

    weight: str
    up: str
    down: str
    turned: bool = False

    def factor_of(self, axis: int) -> tuple[str, int]:
        """Which factor has an axis of the weight, and where: (m, r, …) and (r, n, …)."""
        return (self.up, 0) if axis == int(self.turned) else (self.down, axis if axis > 1 else 1)


def turned_factors(
    factors: Tensors,
    pairs: Mapping[str, Pair],
    base: Tensors,
    fitted: FittedSpec,
    elements: Elements,
    folds: Folds,
    whole: Mapping[str, str],
) -> Tensors:
    """Factors as the elements make the sum of `base` and their products; names of factors are kept.

    `pairs` are by the weight's name in the base; `whole` are other tensors with the base's names of what they
    replace. Raises SpecError where that is no product of the same rank alone: where a bias of a norm goes
    into an adapted layer, a list is reordered, or an axis's order depends on another one's.
    """
    axes: dict[str, tuple[Axis, ...]] = {name: fitted.tensors.get(its, ()) for name, its in whole.items()}
    problems = _problems(pairs, base, fitted, elements, folds)
    if whole and folds.tensors & {*whole.values()}:
        problems += [f"{name}  is folded, and saved whole" for name in whole]
    if problems:
        raise SpecError(
            "this adapter cannot be moved as factors of the same rank",
            problems=problems,
            hint="Merge it into its base (rebasin average ADAPTER --weights 1 --base MODEL -o FILE), "
            "and apply to that",
        )
    for weight, pair in pairs.items():
        if not (its := fitted.tensors.get(weight, ())):
            continue
        puts, reads = (its[1], its[0]) if pair.turned else (its[0], its[1])
        axes[pair.up] = (puts, *[Fixed()] * (len(its) - 1))
        axes[pair.down] = (Fixed(), reads, *its[2:])
    gains = {norm.weight: base[norm.weight] for norm in folds.norms if norm.weight is not None}
    model = over(dict(factors), gains)
    shapes = {name: shape for name, (_, shape) in plan_of(model).items()}
    own = replace(fitted, tensors=axes, shapes=shapes, stacks={})
    return turned(model, own, elements, _folds(folds, pairs))


def _problems(
    pairs: Mapping[str, Pair], base: Tensors, fitted: FittedSpec, elements: Elements, folds: Folds
) -> list[str]:
    problems = []
    for weight in pairs:
        its = fitted.tensors.get(weight, ())
        if any(elsewhere(axis, fitted.within) for axis in its):
            problems.append(f"{weight}  has an axis whose order depends on another one's")
        if weight in fitted.places:
            order = elements.permutations[fitted.stacks[fitted.places[weight][0]].word]
            if not torch.equal(order, torch.arange(len(order))):
                problems.append(f"{weight}  is one of a list, which is reordered")
    for norm in folds.norms:
        if norm.bias is not None and not norm.free and bool(base[norm.bias].any()):
            problems += [
                f"{reader.weight}  reads {norm.bias}, which is not 0: that would be a bias of the adapter"
                for reader in norm.readers
                if reader.weight in pairs
            ]
    for value in folds.values:
        part = value.part
        if value.reader.weight in pairs and bool(base[part.tensor].narrow(0, part.start, part.length).any()):
            problems.append(f"{value.reader.weight}  reads {part.tensor}, which is not 0")
    return problems


def _folds(folds: Folds, pairs: Mapping[str, Pair]) -> Folds:
    """What is folded of factors: gains and means, each of the factor that has the axis."""

    def reader(its: Reader) -> Reader:
        name, axis = pairs[its.weight].factor_of(its.axis)
        return Reader(name, None, axis)

    norms = (
        Norm(norm.weight, None, tuple(reader(its) for its in norm.readers if its.weight in pairs))
        for norm in folds.norms
        if norm.weight is not None
    )
    means = tuple(pairs[name].factor_of(axis) for name, axis in folds.means if name in pairs)
    return Folds(norms=tuple(norms), means=means)
