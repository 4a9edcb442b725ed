"""Which families of tensors several models have, and whether they can be averaged.

A family is averaged as what it stands for, where that can be written back; kept, where all models have the
same; ignored, where all of it is; else refused, since means of its tensors would be another network's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from ..checkpoints.families import Family, Plan, families
from ..checkpoints.forms import Kind, Planned
from ..checkpoints.tensors import LazyTensors, plan_of, rows
from ..checkpoints.validation import wrong_dtype
from ..errors import SpecError
from ..types import Tensors
from .kinship import alike
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


Key = tuple[str, str]  # what a family stands for, and its kind

SHOWN = 3  # families of a kind that an error names


def products_of(
    models: Sequence[Tensors],
    *,
    keep: Collection[str] = (),
    source: Tensors | None = None,
    resized: bool = False,
) -> Products:
    """The families of these models. Values are read only of those that cannot be averaged: are they alike?

    `keep` names what is copied whatever it is, from `source` (the first model); `resized` says that tensors
    of other sizes may be joined (`--heads`). Raises SpecError that names the families: those that cannot be
    written back and differ, that not all models have in one form, or of which half would be copied.
    """
    every = [*models, *([source] if source is not None else [])]
    plans = [plan_of(model) for model in every]
    found = _found(plans)
    if not any(found):
        return Products()
    every_family: dict[Key, Family] = {}
    kept = {*keep}
    for its in found[: len(models)]:
        for key, family in its.items():
            if not keep or not {*family.members.values()} <= kept:
                every_family.setdefault(key, family)
    _check_bases(every_family, found[: len(models)])
    exact: list[Family] = []
    fixed: dict[str, str] = {}
    refused: dict[Kind, list[Family]] = {}
    stems = [{stem for stem, _ in its} for its in found]
    for key, family in every_family.items():
        names = {*family.members.values()}
        having = [
            k
            for k, plan in enumerate(plans[: len(models)])
            if family.stem in plan or family.stem in stems[k] or not names.isdisjoint(plan)
        ]
        if any(found[k].get(key) != family for k in having):
            if family.kind.name != "quantised":  # of that one tensor `parts` tells the dtypes
                raise _other_forms(family, found, having)
        elif not all(k in having for k in range(len(models))):
            continue  # as any other tensors that not all models have
        elif family.kind in refused:
            refused[family.kind].append(family)  # one that differs is enough: no more is read
        elif len({tuple(plans[k][name][1] for name in family.members.values()) for k in having}) > 1:
            if resized or not family.kind.exact:
                refused.setdefault(family.kind, []).append(family)
        elif not names.isdisjoint(keep) and not all(alike(every, name) for name in names):
            raise _half(family, keep)
        elif family.kind.exact:
            exact.append(family)
        elif (changing := _changing(every, family, plans[0])) is None:
            refused.setdefault(family.kind, []).append(family)
        else:
            fixed |= dict.fromkeys(names - changing, family.kind.name)
    if refused:
        raise _refused(refused)
    return Products(tuple(exact), fixed)


def families_of(plans: Iterable[Plan]) -> list[Family]:
    """The families of all these files; those that several have alike once."""
    return [*{key: family for its in reversed(_found([*plans])) for key, family in its.items()}.values()]


def _found(plans: Sequence[Plan]) -> list[Mapping[Key, Family]]:
    """The families of each file by what they stand for; most files have the same tensors."""
    return [_of_plan(tuple(plan.items())) for plan in plans]


@functools.lru_cache(maxsize=16)
def _of_plan(plan: tuple[tuple[str, Planned], ...]) -> Mapping[Key, Family]:
    """As long as a path is measured, its files have the same tensors at every point."""
    found = families(dict(plan), _is_code)
    return MappingProxyType({(it.stem, it.kind.name): it for it in found})


def _is_code(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is codes by its name, dtype and shape alone."""
    return not (dtype.is_floating_point or dtype.is_complex) and bool(wrong_dtype(name, dtype, shape))


def _changing(models: Sequence[Tensors], family: Family, plan: Plan) -> set[str] | None:
    """Members that differ among models and may do so by themselves; None where more do."""
    changing: set[str] = set()
    for role, name in family.members.items():
        if not alike(models, name):
            if changing or role not in family.kind.free or not plan[name][0].is_floating_point:
                return None
            changing.add(name)
    return changing


# ----------------------------------------------------------------------------------------------------- errors


def _check_bases(every_family: Mapping[Key, Family], found: Sequence[Mapping[Key, Family]]) -> None:
    """Raise SpecError for adapters beside models that have none."""
    adapters = [family for family in every_family.values() if family.kind.name == "adapter"]
    with_one = [any(family.kind.name == "adapter" for family in its.values()) for its in found]
    if adapters and not all(with_one):
        shown = ", ".join([*adapters[0].members.values()][:SHOWN])
        raise SpecError(
            "an adapter and a model that is none cannot be averaged: the adapter is to be added to its base",
            problems=[
                f"{f'an adapter: {shown}' if there else 'no adapter'} in model {k}"
                for k, there in enumerate(with_one, start=1)
            ],
            hint=adapters[0].kind.next,
        )


def _refused(refused: Mapping[Kind, Sequence[Family]]) -> SpecError:
    kinds = " and ".join(kind.name for kind in refused)
    problems = []
    for kind, its in refused.items():
        problems += [f"{family}" for family in its[:SHOWN]]
        problems += [f"… and {len(its) - SHOWN} more: {kind.name}"] if len(its) > SHOWN else []
    means = "; ".join(dict.fromkeys(kind.means for kind in refused))
    hints = dict.fromkeys(kind.next for kind in refused)
    ignored = all(kind.name == "adapter" for kind in refused)
    return SpecError(
        f"{kinds} tensors differ among the models, and cannot be averaged one by one: together they are "
        f"{means}",
        problems=problems,
        hint=". ".join(hints) + ("" if ignored else ". Or take those of one model: --ignore GLOB") + ".",
    )


def _other_forms(family: Family, found: Sequence[Mapping[Key, Family]], having: Sequence[int]) -> SpecError:
    def told(its: Mapping[Key, Family]) -> str:
        there = [other for other in its.values() if other.stem == family.stem]
        return " and ".join(f"{it.kind.name} ({', '.join(it.members.values())})" for it in there) or "plain"

    return SpecError(
        f"{family.stem} is stored in different forms, which cannot be averaged",
        problems=[f"{told(found[k])} in model {k + 1}" for k in having],
        hint=family.kind.next,
    )


def _half(family: Family, keep: Collection[str]) -> SpecError:
    return SpecError(
        f"half of {family.stem} would be copied: {family.kind.name}, together {family.kind.means}",
        problems=[
            f"{its}  {'copied' if its in keep else 'to be averaged'}" for its in family.members.values()
        ],
        hint="Ignore all of them, or none",
    )
