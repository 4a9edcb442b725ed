"""Tensors of several models that are the same ones under other names, brought under the names of the first.

prefix   `model.layers.0.weight` in one file is `layers.0.weight` in another: a wrapper's name stands before
tie      one file stores an embedding once, another one twice: also as the layer that gives logits

Both are exchanged where nothing else can be meant, and told. Values are compared for ties alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checkpoints.tensors import LazyTensors, Plan, plan_of, rows
from ..checkpoints.wrappers import WRAPPERS
from ..types import Tensors, is_lazy
from .kinship import same
from .parts import EMBEDDING, LOGITS

# What a program calls a network that it holds. Other names are of parts: an encoder is no decoder.
CONTAINERS = {*WRAPPERS, "_forward_module", "model", "module", "net", "network", "nn", "base_model"}
CONTAINERS |= {"wrapped", "wrapped_model", "inner_model", "backbone"}
DEEPEST = 8  # segments of a prefix
SAMPLE = 256  # names by which a prefix is ruled out
LOOKED_AT = 64  # rows of a tensor
FEW = 8  # different numbers
MOST = 64  # pairs of tensors that are compared for a tie


@dataclass(frozen=True)
class Prefix:
    """`given` before names of a model is `wanted` in the first; `renamed` are its names, old → new."""

    given: str
    wanted: str
    matched: int
    renamed: Mapping[str, str]

    @property
    def certain(self) -> bool:
        """Whether what differs can only be a wrapper's name."""
        given, wanted = self.given.split(".")[:-1], self.wanted.split(".")[:-1]
        while given and wanted and given[-1] == wanted[-1]:
            given, wanted = given[:-1], wanted[:-1]
        while given and wanted and given[0] == wanted[0]:
            given, wanted = given[1:], wanted[1:]
        return not given or not wanted or {*given, *wanted} <= CONTAINERS

    def __str__(self) -> str:
        if not self.given:
            return f"{self.wanted!r} is put before"
        return f"{self.given!r} is {'exchanged for ' + repr(self.wanted) if self.wanted else 'taken off'} in"


def agreed(
    models: Sequence[Tensors], called: Sequence[str] = (), one: Collection[Sequence[str]] = ()
) -> tuple[list[Tensors], list[str]]:
    """The models under the names of the first where only prefixes and ties differ; what was done, in lines.

    `called` are the models' names in these lines, `one` has the names of each tensor that the network is
    known to have under several. What still differs then is for others to refuse.
    """
    called = called or [f"model {k}" for k in range(1, len(models) + 1)]
    made, told = [*models[:1]], []
    for model, name in zip(models[1:], called[1:], strict=True):
        found, lines = _prefixed(models[0], model, name, called[0], one)
        made.append(found)
        told += lines
    for k, name in enumerate(called[1:], start=1):
        made[k], lines = _retied(made, k, name, called[0], one)
        told += lines
    return made, told + [*_torn(made, called)]


def _prefixed(
    first: Tensors, model: Tensors, name: str, as_in: str, one: Collection[Sequence[str]]
) -> tuple[Tensors, list[str]]:
    if first is model or [*first] == [*model]:
        return model, []
    told = []
    prefix = exchanged(plan_of(first), plan_of(model))
    if prefix is not None:
        many = f"{len(prefix.renamed)} names" if len(prefix.renamed) > 1 else "a name"
        if prefix.certain:
            told.append(f"{name}: {prefix} {many}, as in {as_in}")
            model = under(model, {prefix.renamed.get(own, own): own for own in model})
        elif not all(any({*pair} <= {*group} for group in one) for pair in prefix.renamed.items()):
            told.append(
                f"{name}: {many} would be as in {as_in} with {prefix.wanted!r} in place of {prefix.given!r}; "
                "these may be two parts of a network, so nothing is exchanged"
            )
    return model, told


def _retied(
    models: Sequence[Tensors], k: int, name: str, as_in: str, one: Collection[Sequence[str]]
) -> tuple[Tensors, list[str]]:
    """Model `k` with ties as the first has them."""
    first, model, told = models[0], models[k], []
    if first is model or {*first} == {*model}:
        return model, []
    ties = {**dict(_ties(first, model, models)), **{copy: None for copy, _ in _ties(model, first, models)}}
    ties |= _known_ties(first, model, one)
    for copy, kept in ties.items():
        if kept is None and copy in ties.values():
            continue  # it has the first's name now
        if kept is None:
            told.append(f"{name}: {copy} is stored twice, and once in {as_in}: it is left out")
        else:
            told.append(f"{name}: {copy} is {kept} here, to which it is tied in {as_in}")
    if ties:
        own = {each: each for each in model if ties.get(each, each) is not None}
        model = under(model, own | {copy: kept for copy, kept in ties.items() if kept is not None})
    return model, told


# ------------------------------------------------------------------------------------------------ prefixes


def exchanged(first: Plan, other: Plan) -> Prefix | None:
    """The prefix by whose exchange the other's names become the first's; None where there is none, or two.

    More than half of the names that only one of them has must agree, in shape, too: up to the number of rows.
    """
    wanting = [name for name in first if name not in other]
    offered = [name for name in other if name not in first]
    if not wanting or not offered:
        return None
    if (whole := _whole(first, other)) is not None:
        return whole
    there, found = set(wanting), {}
    looked: list[tuple[str, str]] = []
    prefixes = [*_prefixes(_some(offered))]
    for wanted in _prefixes(_some(wanting)):
        for given in prefixes:
            if any(_longer(wanted, given, *pair) for pair in looked):
                continue  # a part of what was looked at
            if not _pairs(there, _some(offered), wanted, given):
                continue
            looked.append((wanted, given))
            pairs = _pairs(there, offered, wanted, given)
            if 2 * len(pairs) <= max(len(wanting), len(offered)) or not _alike(pairs, first, other):
                continue
            renamed = pairs | _further(offered, wanted, given, pairs)
            if len({*renamed.values()} | ({*other} - {*renamed})) < len(other):
                continue  # two tensors would share a name
            found[wanted, given] = Prefix(given, wanted, len(pairs), renamed)
    best = sorted(found.values(), key=lambda prefix: -prefix.matched)
    if len(best) > 1 and best[0].matched == best[1].matched:
        return None
    return best[0] if best else None


def _whole(first: Plan, other: Plan) -> Prefix | None:
    """The prefix before all names of the other that makes them all of the first's, or the other way round.

    Names that both have are then of other tensors: `a.w` is `a.a.w` there, and `w` is `a.w`.
    """
    if len(first) != len(other):
        return None
    ways = [(wanted, "") for wanted in _prefixes([*first])] + [("", given) for given in _prefixes([*other])]
    for wanted, given in ways:
        pairs = _pairs({*first}, [*other], wanted, given)
        if len({*pairs.values()}) == len(first) and _alike(pairs, first, other):
            return Prefix(given, wanted, len(pairs), pairs)
    return None


def _some(names: Sequence[str]) -> Sequence[str]:
    """Names from beginning to end: what hardly any of them has is no prefix of more than half."""
    return names[:: len(names) // SAMPLE + 1]


def _longer(wanted: str, given: str, before: str, other: str) -> bool:
    """Whether both prefixes are two others with the same further segments."""
    more = wanted[len(before) :]
    return wanted.startswith(before) and given == other + more


def _prefixes(names: Sequence[str]) -> Iterator[str]:
    """ "", and what more than half of the names begin with, segment by segment."""
    prefix = ""
    for _ in range(DEEPEST):
        yield prefix
        below = (name[len(prefix) :].split(".", 1) for name in names if name.startswith(prefix))
        counts = Counter(parts[0] for parts in below if len(parts) > 1)
        segment, count = counts.most_common(1)[0] if counts else ("", 0)
        if 2 * count <= len(names):
            return
        prefix = f"{prefix}{segment}."


def _pairs(there: Collection[str], offered: Sequence[str], wanted: str, given: str) -> dict[str, str]:
    """Names of the second model → those of the first that they are with the prefix exchanged."""
    moved = ((name, wanted + name[len(given) :]) for name in offered if name.startswith(given))
    return {name: new for name, new in moved if new in there}


def _alike(pairs: Mapping[str, str], first: Plan, other: Plan) -> bool:
    sizes = [(first[new][1], other[name][1]) for name, new in pairs.items()]
    equal = sum(one == two for one, two in sizes)
    return 2 * equal > len(sizes) and all(one[1:] == two[1:] and len(one) == len(two) for one, two in sizes)


def _further(offered: Sequence[str], wanted: str, given: str, pairs: Mapping[str, str]) -> dict[str, str]:
    """What lies beside the pairs gets the prefix, too: a layer more, but no head of another network."""
    beside = {name[len(given) :].partition(".")[0] for name in pairs}
    moved = (name for name in offered if name.startswith(given) and name not in pairs)
    return {name: wanted + name[len(given) :] for name in moved if given or name.partition(".")[0] in beside}


# ------------------------------------------------------------------------------------------------ ties


def _ties(having: Tensors, lacking: Tensors, models: Sequence[Tensors]) -> Iterator[tuple[str, str]]:
    """(copy, tensor) where `having` holds one tensor under two names, of which `lacking` has only the second.

    So it must be in all `models` that have both: in one piece of memory where that can be told, as in torch
    files. Where it cannot, as in safetensors: equal bit by bit, and values that are drawn or learnt.
    """
    plan, there = plan_of(having), plan_of(lacking)
    copies = [name for name in plan if name not in there and len(plan[name][1]) > 1]
    copies.sort(key=lambda name: not (LOGITS.search(name) or EMBEDDING.search(name)))  # the likely ones first
    by_plan: dict[tuple[torch.dtype, tuple[int, ...]], list[str]] = {}
    for name in there:
        if name in plan:
            by_plan.setdefault(plan[name], []).append(name)
    compared = 0
    for copy in copies:
        for kept in by_plan.get(plan[copy], ()):
            if there[kept][1][1:] != plan[kept][1][1:]:  # of another vocabulary it may be
                continue
            compared += not _one_memory(having, copy, kept)
            if compared > MOST:
                return
            both = (model for model in (having, *models) if copy in model and kept in model)
            if all(_are_one(model, copy, kept) for model in both):
                yield copy, kept
                break


def _known_ties(first: Tensors, model: Tensors, one: Collection[Sequence[str]]) -> dict[str, str | None]:
    """For each name that only one of both has, of a tensor that the network has once: the model's own name of
    it, or None where the model has another of the first's. Values that differ in a model leave all as it is.
    """
    found: dict[str, str | None] = {}
    for group in one:
        ours, its = ([name for name in group if name in each] for each in (first, model))
        if (
            not ours
            or not its
            or any(len({*map(plan_of(m).get, n)}) > 1 for m, n in ((first, ours), (model, its)))
        ):
            continue
        if all(equal_values(m, n[0], other) for m, n in ((first, ours), (model, its)) for other in n[1:]):
            found |= {name: its[0] for name in ours if name not in its}
            found |= {name: None for name in its if name not in ours}
    return found


def _torn(models: Sequence[Tensors], called: Sequence[str]) -> Iterator[str]:
    """A line for each two tensors that are one in some models, and two in others.

    Looked at are ties in memory, and embeddings with layers of their shape that give logits.
    """
    groups = {group for model in models for group in getattr(model, "tied", ())}
    pairs = {(group[0], other): True for group in sorted(groups) for other in group[1:]}
    for plan in map(plan_of, models):
        by_plan: dict[object, list[str]] = {}
        for name in (name for name in plan if EMBEDDING.search(name) and len(plan[name][1]) > 1):
            by_plan.setdefault(plan[name], []).append(name)
        heads = (name for name in plan if LOGITS.search(name) and not EMBEDDING.search(name))
        pairs |= {(one, head): True for head in heads for one in by_plan.get(plan[head], ())}
    for one, other in [*pairs][:MOST] if len({*map(id, models)}) > 1 else ():
        both = [k for k, model in enumerate(models) if one in model and other in model]
        tied = [k for k in both if _are_one(models[k], one, other)]
        apart = [k for k in both if k not in tied and not equal_values(models[k], one, other)]
        alone = [k for k, model in enumerate(models) if k not in both and (one in model or other in model)]
        first, two, third = (" and ".join(called[k] for k in some) for some in (tied, apart, alone))
        if tied and apart:
            yield f"{one} and {other} are one tensor in {first}, and two in {two}: they are taken as two"
        elif apart and alone:
            may = f"{third} has one of them, and may use it for both (saved under both names it has two)"
            yield f"{one} and {other} are two tensors in {two}; {may}"


def _are_one(model: Tensors, one: str, other: str) -> bool:
    if _one_memory(model, one, other):
        return True
    known = getattr(model, "knows_ties", False)
    return not known and equal_values(model, one, other) and _learnt(model, one)


def _one_memory(model: Tensors, one: str, other: str) -> bool:
    """Whether two names are of one piece of memory; False also where nobody knows."""
    if isinstance(model, dict) and isinstance(model[one], Tensor) and isinstance(model[other], Tensor):
        there = model[one].numel() and not model[one].is_meta
        return bool(there) and _place(model[one]) == _place(model[other])
    return any({one, other} <= {*group} for group in getattr(model, "tied", ()))


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _learnt(model: Tensors, name: str) -> bool:
    """Whether values may have been drawn or learnt: constants, unit matrices, filters of a few numbers are
    equal in many tensors that have nothing to do with each other.
    """
    part = rows(model, name, 0, min(LOOKED_AT, plan_of(model)[name][1][0]))
    part = (torch.view_as_real(part) if part.is_complex() else part).double().flatten()
    distinct = len(part.unique())
    return 2 * int(part.count_nonzero()) > len(part) and distinct >= min(FEW, len(part))


def equal_values(model: Tensors, one: str, other: str) -> bool:
    """Whether two tensors of a model are equal bit by bit."""
    return same(under(model, {"w": one}), under(model, {"w": other}), "w")


def under(model: Tensors, names: Mapping[str, str]) -> Tensors:
    """The model with its tensors under other names: new → old."""
    own: Callable[[Mapping[str, str]], Tensors] | None = getattr(
        model, "under", None
    )  # a checkpoint stays one
    if own is not None:
        return own(names)
    known = model
    if not is_lazy(known):
        return {new: model[old] for new, old in names.items()}
    return LazyTensors(
        {new: known.shapes[old] for new, old in names.items()},
        {new: known.dtypes[old] for new, old in names.items()},
        lambda name: model[names[name]],
        lambda name, start, stop: rows(model, names[name], start, stop),
    )
