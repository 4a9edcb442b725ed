"""Families of stored tensors that mean something only together, found by names, shapes and dtypes.

What a layer computes with is then a function of several stored tensors: two factors of low rank, codes and
their scales, a direction and its length. The mean of each of them is not the mean of what they stand for. The
table is in `forms`; what is done with them where models are averaged is `averages.products`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .forms import FORMS, KINDS, WEIGHTS, Form, Kind, Planned, Shape, normed, same_shape, scaled, spectral

Plan = Mapping[str, Planned]


@dataclass(frozen=True)
class Family:
    """Tensors of a file that mean something together: names by role. `stem` is what they stand for."""

    kind: Kind
    stem: str
    members: Mapping[str, str] = field(hash=False)

    def role_of(self, name: str) -> str:
        return next(role for role, its in self.members.items() if its == name)

    def __str__(self) -> str:
        return f"{self.stem}  {self.kind.name}: {', '.join(self.members.values())}"


def _by_last() -> dict[str, list[str]]:
    """The endings of all forms by what follows their last separator."""
    found: dict[str, list[str]] = {}
    for ending in dict.fromkeys(
        end for form in FORMS for end in (*form.endings.values(), *form.beside.values())
    ):
        found.setdefault(_last(ending), []).append(ending)
    return found


def _last(name: str) -> str:
    return name[max(name.rfind("."), name.rfind("_")) + 1 :]


ENDINGS = _by_last()
OF_ANY = ("_scale", "_scale_inv", "_scales", ".scale")
WEIGHT = re.compile(r"(weight|kernel|bias)[^.]*$")

ADAPTER = re.compile(
    r"(?P<stem>(?:.*?[._])?)(?P<role>"
    r"lora_(?:embedding_)?[ABab]|lora_E|lora_magnitude_vector|dora_scale|lora_(?:up|down|mid)"
    r"|lora(?:_linear_layer|\d*)\.(?:up|down|mid)"
    r"|hada_(?:w[12]_[ab]|t[12])|lokr_(?:w[12](?:_[ab])?|t[12])|vera_(?:lambda_[bd]|[AB])|boft_[Rs])"
    r"(?:\.[^.]+)?(?:\.weight)?"
)
LOOKS_ADAPTED = ("lora", "dora_scale", "hada_", "lokr_", "vera_", "boft_")
PARAMETRIZED = re.compile(r"((?:.*\.)?)parametrizations\.([^.]+)\.(.+)")


def _adapters(names: Sequence[str], plan: Plan) -> Iterator[Family]:
    """Factors by the module that they adapt, one adapter's or several; one factor alone is none."""
    stems: dict[str, dict[str, str]] = {}
    for name in names:
        if not any(part in name for part in LOOKS_ADAPTED) or len(name) > 1000:
            continue
        if found := ADAPTER.fullmatch(name):
            stems.setdefault(found["stem"], {})[name] = name
    for stem, members in stems.items():
        if len(members) < 2 and "boft_" not in next(iter(members)):
            continue
        alpha = f"{stem}alpha"
        yield Family(KINDS["adapter"], stem.rstrip("._"), members | ({alpha: alpha} if alpha in plan else {}))


def _parametrizations(names: Sequence[str], plan: Plan) -> Iterator[Family]:
    """What torch.nn.utils.parametrize stores of a weight; one tensor alone is as any other weight."""
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        if "parametrizations." in name and (found := PARAMETRIZED.fullmatch(name)):
            groups.setdefault(found[1] + found[2], {})[found[3]] = name
    for stem, members in groups.items():
        if len(members) > 1:
            yield _parametrized(stem, members, plan)


def _parametrized(stem: str, members: Mapping[str, str], plan: Plan) -> Family:
    for kind, roles, fits in (
        ("spectral norm", {"original": "weight", "0._u": "u", "0._v": "v"}, spectral),
        ("weight norm", {"original0": "g", "original1": "v"}, normed),
        ("pruning mask", {"original": "weight", "0.mask": "mask"}, same_shape),
    ):
        if roles.keys() == members.keys():
            named = {role: members[own] for own, role in roles.items()}
            if fits({role: plan[name] for role, name in named.items()}):
                return Family(KINDS[kind], stem, named)
    named = {"weight" if own == "original" else own: name for own, name in members.items()}
    return Family(KINDS["parametrization"], stem, named)


def families(plan: Plan, loose: Callable[[str, torch.dtype, Shape], Any] | None = None) -> list[Family]:
    """All families of a file with these tensors, each tensor in one at most; linear in the names.

    What `loose` calls true is codes all by itself: a family of one.
    """
    found = list(_found(plan))
    # what a family stands for may be a tensor of another: a weight that is reparametrized twice
    inner = {family.stem: family for family in found if family.kind.name in WEIGHTS}
    if inner := {stem: family for stem, family in inner.items() if stem not in plan}:
        found = list(_nested(plan, found, inner))
    if loose is not None:
        taken = {name for family in found for name in family.members.values()}
        found += [
            Family(KINDS["quantised"], name, {"codes": name})
            for name, planned in plan.items()
            if name not in taken and loose(name, *planned)
        ]
    return found


def _nested(plan: Plan, found: Sequence[Family], inner: Mapping[str, Family]) -> Iterator[Family]:
    """The same families; one whose tensor is what another stands for is one with it, of no form known."""
    taken = {name for family in found for name in family.members.values()}
    whole = {name: planned for name, planned in plan.items() if name not in taken}
    for stem, family in inner.items():
        whole[stem] = max((plan[name] for name in family.members.values()), key=lambda it: math.prod(it[1]))
    within: set[str] = set()
    for family in _found(whole):
        names = list(family.members.values())
        if stems := [name for name in names if name in inner]:
            within |= {*stems}
            members = [name for name in names if name not in inner]
            members += [name for stem in stems for name in inner[stem].members.values()]
            yield Family(KINDS["parametrization"], family.stem, {name: name for name in members})
    yield from (
        family for family in found if inner.get(family.stem) is not family or family.stem not in within
    )


def _found(plan: Plan) -> Iterator[Family]:
    taken: set[str] = set()
    names = list(plan)
    for family in (*_parametrizations(names, plan), *_adapters(names, plan)):
        taken |= {*family.members.values()}
        yield family
    stems: dict[str, dict[str, str]] = {ending: {} for endings in ENDINGS.values() for ending in endings}
    for name in names:
        for ending in ENDINGS.get(_last(name), ()):
            if f".{name}".endswith(ending):
                stems[ending][f".{name}"[: -len(ending)]] = name
    for form in FORMS:
        for stem in _stems(form, stems):
            roles = form.endings | form.beside
            members = {role: stems[end][stem] for role, end in roles.items() if stem in stems[end]}
            members = {role: name for role, name in members.items() if name not in taken}
            if not form.endings.keys() <= members.keys() or len(members) < len(form.endings) + form.some:
                continue
            product = (stem + form.stands_for).removeprefix(".")
            if form.weight and (product in plan or not WEIGHT.search(product)):
                continue
            if form.fits({role: plan[name] for role, name in members.items()}):
                taken |= {*members.values()}
                yield Family(KINDS[form.kind], product, members)
    for name, (dtype, _) in plan.items():  # whatever has a scale named after it
        if dtype.itemsize == 1 and name not in taken:
            members = {"codes": name} | {end: name + end for end in OF_ANY if name + end in plan}
            if len(members) > 1 and scaled({role: plan[its] for role, its in members.items()}):
                yield Family(KINDS["scaled float8"], name, members)


def _stems(form: Form, stems: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The stems that have all endings of a form, and one beside them where it takes some."""
    first, *others = sorted((stems[ending] for ending in form.endings.values()), key=len)
    if form.some:
        others = [first, *others]
        first = {stem: "" for ending in form.beside.values() for stem in stems[ending]}
    return [stem for stem in first if all(stem in other for other in others)]
