"""Families of tensors where models are joined: what they stand for is, and is written back in their form.

Each model is seen with what its families stand for in place of the tensors that carry it; the views are
joined (a mean, an arc); the join is written as the file stores it. `together` says which families there are,
`writing_back` how each is computed. A family is made whole, and the last one is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..checkpoints.families import Family
from ..checkpoints.tensors import LazyTensors, plan_of, rows
from ..types import Tensors
from .kinship import equal_values as equal
from .writing_back import WAYS, effective, written_back

Join = Callable[[Sequence[Tensors], Collection[str]], LazyTensors]  # of models, and of what stays the first's


@dataclass(frozen=True)
class Products:
    """Families whose product is averaged, and `fixed`: members of others, by name their kind's.

    Fixed are those that all models have alike, and that must not change alone.
    """

    families: tuple[Family, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)

    @property
    def members(self) -> dict[str, Family]:
        """The family of each tensor that is in one."""
        return {name: family for family in self.families for name in family.members.values()}

    @property
    def straight(self) -> set[str]:
        """Members that are sums over samples, which have no direction to turn."""
        return {name for name, family in self.members.items() if family.kind.name == "running moments"}

    def joined(
        self,
        models: Sequence[Tensors],
        weights: Sequence[float],
        keep: Collection[str],
        join: Join,
        dtype: torch.dtype | None = None,
    ) -> LazyTensors:
        """What `join` makes of these models, the products of families in place of their tensors.

        `dtype` is that of all floating-point members (their own).
        """
        keep = {*keep, *self.fixed} if self.fixed else keep
        if not self.families:
            return join(models, keep)
        carried = {its for family in self.families for its in _carried(family).values()}
        beside = self.members.keys() - carried
        found = join(
            [self._view(model, carried, k) for k, model in enumerate(models, start=1)], {*keep, *beside}
        )
        return self._written(found, models, weights, dtype)

    def _view(self, model: Tensors, carried: Collection[str], number: int) -> LazyTensors:
        """The model with what its families stand for, float64, in place of the tensors that carry it."""
        plan = plan_of(model)

        def make(family: Family) -> dict[str, Tensor]:
            made = effective(family, {role: model[its] for role, its in family.members.items()}, number)
            return {family.members[role]: tensor for role, tensor in made.items()}

        of = {its: family for family in self.families for its in _carried(family).values()}
        dtypes = {name: torch.float64 if name in carried else dtype for name, (dtype, _) in plan.items()}
        return _overlaid(model, of, make, dtypes)

    def _written(
        self, joined: Tensors, models: Sequence[Tensors], weights: Sequence[float], dtype: torch.dtype | None
    ) -> LazyTensors:
        """`joined` with its families in the form and the dtypes of the first model.

        A family that all models with a weight have bit for bit stays so.
        """
        there = [k for k, weight in enumerate(weights) if weight]
        of = self.members
        first = plan_of(models[0])
        dtypes = {name: first[name][0] if name in of else its for name, (its, _) in plan_of(joined).items()}
        if dtype is not None:
            dtypes |= {name: dtype for name in of if dtypes[name].is_floating_point}

        def make(family: Family) -> dict[str, Tensor]:
            given = [{role: models[k][its] for role, its in family.members.items()} for k in there]
            if all(_same(given[0], other) for other in given[1:]):
                made = given[0]
            else:
                carried = {role: joined[its] for role, its in _carried(family).items()}
                made = written_back(family, carried, given, [weights[k] for k in there])
            # a copy: what is handed out is no model's own
            return {its: made[role].to(dtypes[its], copy=True) for role, its in family.members.items()}

        return _overlaid(joined, of, make, dtypes)


def _carried(family: Family) -> dict[str, str]:
    """The names of those that stand for the whole, by role."""
    return {role: family.members[role] for role in WAYS[family.kind.name].carriers}


def _same(one: Tensors, other: Tensors) -> bool:
    return all(
        tensor.dtype == other[role].dtype and equal(tensor, other[role]) for role, tensor in one.items()
    )


def _overlaid(
    tensors: Tensors,
    of: Mapping[str, Family],
    make: Callable[[Family], Tensors],
    dtypes: Mapping[str, torch.dtype],
) -> LazyTensors:
    """`tensors` with some that are made a family at a time; the last family is kept."""
    kept: dict[str, Tensor] = {}

    def get(name: str) -> Tensor:
        if name not in of:
            return tensors[name]
        if name not in kept:
            kept.clear()
            kept.update(make(of[name]))
        return kept[name]

    def part(name: str, start: int, stop: int) -> Tensor:
        return get(name)[start:stop] if name in of else rows(tensors, name, start, stop)

    return LazyTensors({name: shape for name, (_, shape) in plan_of(tensors).items()}, dtypes, get, part)
