"""Families of stored tensors that mean something only together, found by names, shapes and dtypes.

What a layer computes with is then a function of several stored tensors: two factors of low rank, codes and
their scales, a direction and its length. The mean of each of them is not the mean of what they stand for. The
table is in `forms`; what is done with them where models are averaged is `averages.together`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


def _last(name: str) -> str:
    return name[max(name.rfind("."), name.rfind("_")) + 1 :]


OF_ANY = ("_scale", "_scale_inv", "_scales", ".scale")
WEIGHT = re.compile(r"(weight|kernel|bias)[^.]*$")

# names of adapters as libraries write them, with dots, underscores or slashes between their parts
ADAPTER = re.compile(
    r"(?P<stem>(?:.*?[._/])?)(?P<role>"
    r"lora_(?:embedding_)?[ABab]|lora_E|lora_magnitude_vector|dora_scale|lora_(?:up|down|mid)"
    r"|lora(?:_linear_layer|\d*)[._](?:up|down|mid)|randlora_(?:[AB]|lambda|gamma)|vblora_logits_[AB]"
    r"|hada_(?:w[12]_[ab]|t[12])|lokr_(?:w[12](?:_[ab])?|t[12])|vera_(?:lambda_[bd]|[AB])"
    r"|b?oft_(?:[Rrs]|blocks)|hra_u)"
    r"(?:[._/].*)?"
)
CURVED = re.compile(r"b?oft_|vblora_|hra_")  # what is computed of one alone is not linear in it
LOOKS_ADAPTED = ("dora_scale", "hada_", "lokr_", "vera_", "oft_", "hra_")
# and as people do: one of two sides behind the word LoRA, what else there is between them and behind
SIDES = re.compile(
    r"(?P<stem>(?:.*?(?<![A-Za-z]))?)(?i:lora)"
    r"(?P<between>[._/](?:[^._/]+[._/])?(?=(?i:[ab])(?![A-Za-z0-9]))|(?=[AB](?![A-Za-z0-9])|Up|Down)"
    r"|[._/](?:layer[._/])?(?=(?i:up|down|left|right|in|out)(?![A-Za-z0-9])))"
    r"(?P<side>(?i:a|b|up|down|left|right|in|out))(?P<rest>.*)"
)
PAIRS = ({"a", "b"}, {"up", "down"}, {"left", "right"}, {"in", "out"})
PARAMETRIZED = re.compile(
    r"((?:.*[._/])?)parametrizations(?:[./]([^./]+)[./](.+)|_(.+?)_(original\d*|\d+_.+))"
)


def _adapters(names: Sequence[str], plan: Plan) -> Iterator[Family]:
    """Factors by the module that they adapt, one adapter's or several; one factor alone is none."""
    stems: dict[str, dict[str, str]] = {}
    sides: dict[tuple[str, ...], dict[str, str]] = {}
    for name in names:
        if len(name) > 1000 or not ("lora" in name.lower() or any(part in name for part in LOOKS_ADAPTED)):
            continue
        if found := ADAPTER.fullmatch(name):
            stems.setdefault(found["stem"], {})[name] = found["role"]
        elif found := SIDES.fullmatch(name):
            key = found["stem"], found["between"], found["rest"]
            sides.setdefault(key, {})[found["side"].lower()] = name
    for (stem, *_), its in sides.items():
        if its.keys() in PAIRS and _factors_of_one(*(plan[name][1] for name in its.values())):
            stems.setdefault(stem, {}).update({name: side for side, name in its.items()})
    for stem, roles in stems.items():
        if len({*roles.values()}) > 1 or CURVED.match(next(iter(roles.values()))):
            names = [*roles, *[name for name in (f"{stem}alpha",) if name in plan]]
            yield Family(KINDS["adapter"], stem.rstrip("._/"), {name: name for name in names})


def _factors_of_one(one: Shape, other: Shape) -> bool:
    """Whether two factors have an axis in common, over which their product adds up, and no longer one."""
    ends = ((0, 1), (1, 0), (-2, -1), (-1, -2))
    return min(len(one), len(other)) > 1 and any(one[k] == other[j] <= min(one[j], other[k]) for k, j in ends)


def _parametrizations(names: Sequence[str], plan: Plan) -> Iterator[Family]:
    """What torch.nn.utils.parametrize stores of a weight; one tensor alone is as any other weight."""
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        if "parametrizations" in name and len(name) <= 1000 and (found := PARAMETRIZED.fullmatch(name)):
            role = found[3] or re.sub(r"^(\d+)_", r"\1.", found[5])
            groups.setdefault(found[1] + (found[2] or found[4]), {})[role.replace("/", ".")] = name
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
    yield from _of_forms(plan, taken, FORMS, str)
    yield from _of_forms(plan, taken, FLAT, _flat)  # as names are that were made one word
    for name, (dtype, _) in plan.items():  # whatever has a scale named after it
        if dtype.itemsize == 1 and name not in taken:
            members = {"codes": name} | {end: name + end for end in OF_ANY if name + end in plan}
            if len(members) > 1 and scaled({role: plan[its] for role, its in members.items()}):
                yield Family(KINDS["scaled float8"], name, members)


def _flat(name: str) -> str:
    return name.replace(".", "_").replace("/", "_")


def _flattened(form: Form) -> Form:
    endings, beside = ({role: _flat(end) for role, end in of.items()} for of in (form.endings, form.beside))
    return replace(form, endings=endings, beside=beside, stands_for=_flat(form.stands_for))


FLAT = [_flattened(form) for form in FORMS]


def _of_forms(
    plan: Plan, taken: set[str], forms: Sequence[Form], spelled: Callable[[str], str]
) -> Iterator[Family]:
    """Families of what is not `taken`, which grows, by names as they are `spelled` in these forms."""
    by_last: dict[str, dict[str, dict[str, str]]] = {}
    for form in forms:
        for ending in (*form.endings.values(), *form.beside.values()):
            by_last.setdefault(_last(ending), {})[ending] = {}
    stems = {ending: its for endings in by_last.values() for ending, its in endings.items()}
    start = spelled(".")
    for name in plan:
        whole = start + spelled(name)
        for ending, its in by_last.get(_last(whole), {}).items():
            if whole.endswith(ending) and name not in taken:
                its.setdefault(whole[: -len(ending)], name)
    for form in forms:
        for stem in _stems(form, stems):
            roles = {**form.endings, **form.beside}
            members = {role: stems[end][stem] for role, end in roles.items() if stem in stems[end]}
            members = {role: name for role, name in members.items() if name not in taken}
            if not form.endings.keys() <= members.keys() or len(members) < len(form.endings) + form.some:
                continue
            product = (stem + form.stands_for).removeprefix(start)
            if form.weight and (product in plan or not WEIGHT.search(product)):
                continue
            if form.fits({role: plan[name] for role, name in members.items()}):
                taken |= {*members.values()}
                yield Family(KINDS[form.kind], product, members)


def _stems(form: Form, stems: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The stems that have all endings of a form, and one beside them where it takes some."""
    first, *others = sorted((stems[ending] for ending in form.endings.values()), key=len)
    if form.some:
        others = [first, *others]
        first = {stem: "" for ending in form.beside.values() for stem in stems[ending]}
    return [stem for stem in first if all(stem in other for other in others)]
