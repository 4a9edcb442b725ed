"""What becomes of each tensor of several models: averaged, copied, joined, left out; by names and shapes.

averaged   every model has it, floating point, in one shape; or it is of a family that is averaged as a whole
copied     integers, families that all models have alike, what the user ignores: as one model has it
heads      two models have it with other first sizes: as many rows as there are classes
extra      not every model has it
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..checkpoints.tensors import Plan, plan_of
from ..errors import SpecError, UsageError, near, unknown
from ..types import Tensors
from .together import Products, products_of
from .untrained import check_untrained

INTEGERS = "integers"  # why a tensor is copied
HEADS = ("keep-a", "keep-b", "average", "concat", "drop")
EXTRA = ("error", "keep-a", "keep", "drop")
_ONE = "Merge models of one function. Where one model's are right for all, "
IGNORED = (
    f"{_ONE}let them be copied: {{ignore}} (the first model's, or that of --copy-from FILE). "
    "What is no setting and was learnt is averaged with --learnt GLOB"
)
IN_SPEC = f"{_ONE}let the first be that model, and name them under ignore: in the spec: {{names}}"
MOST = 4  # names in a line of advice
HEADS_ADVICE = "--heads keep-a|keep-b|average|concat|drop"
EMBEDDING = re.compile(r"emb|wte|tok|shared|vocab", re.IGNORECASE)
LOGITS = re.compile(r"head|logit|output|decoder|proj_out|predict", re.IGNORECASE)


@dataclass(frozen=True)
class Parts:
    """Names by what becomes of them, in the order of the output. `copied` says why, `extra` whose it is.

    `learnt` are those that no table's or scaling's values are looked for in: the user knows better.
    `products` are families among the averaged that are averaged as what they stand for together.
    """

    averaged: tuple[str, ...]
    copied: dict[str, str]
    heads: tuple[str, ...] = ()
    extra: dict[str, int] | None = None
    dropped: tuple[str, ...] = ()
    learnt: frozenset[str] = frozenset()
    products: Products = field(default_factory=Products)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Those averaged ones that are running statistics of a norm, whose average describes no model."""
        return running_statistics(self.averaged)


PAIRS = (("running_mean", "running_var"), ("moving_mean", "moving_variance"), ("moving_mean", "moving_var"))


def running_statistics(names: Iterable[str]) -> tuple[str, ...]:
    """Names of running means and variances: those that come in pairs, as BatchNorm's do."""
    there = dict.fromkeys(names)
    found = set()
    for name in there:
        stem, dot, last = name.rpartition(".")
        for pair in PAIRS:
            if last in pair and there.keys() >= {f"{stem}{dot}{word}" for word in pair}:
                found.add(name)
    return tuple(name for name in there if name in found)


def check_choices(heads: str | None, extra: str, models: int) -> None:
    """Raise UsageError for choices that there are not, or that are for two models."""
    if heads is not None and heads not in HEADS:
        raise unknown("choice for --heads", heads, HEADS)
    if extra not in EXTRA:
        raise unknown("choice for --extra", extra, EXTRA)
    if heads is not None and models != 2:
        raise UsageError(f"--heads is for two models, not {models}", hint="Merge them two by two")


def _named(option: str, globs: Sequence[str], names: Iterable[str]) -> set[str]:
    """What an option names. Raises UsageError for a glob of nothing: a slip would average it."""
    found: set[str] = set()
    for glob in globs:
        named = {name for name in names if fnmatch.fnmatchcase(name, glob)}
        if not named:
            hint = near(glob.strip("*.") or glob, names)
            raise UsageError(
                f"{option} {glob!r} names no tensor of these models",
                hint=f"{hint[0].upper()}{hint[1:]}; rebasin inspect FILE lists them",
            )
        found |= named
    return found


def parts_of(
    models: Sequence[Tensors],
    *,
    ignore: Sequence[str] = (),
    learnt: Sequence[str] = (),
    source: Tensors | None = None,
    heads: str | None = None,
    extra: str = "error",
    values: bool = True,
) -> Parts:
    """Sort the tensors of these models. `source` is whose tensors are copied; `ignore`, `learnt` are globs.

    Without `values` none are looked at: `check_values` does that later. Raises SpecError with every tensor
    that cannot be averaged, for families that cannot (`together`), UsageError for choices that there are
    not, and for a glob that names no tensor.
    """
    check_choices(heads, extra, len(models))
    plans = [plan_of(model) for model in models]
    source_plan = plans[0] if source is None else plan_of(source)
    averaged: list[str] = []
    joined: list[str] = []
    dropped: list[str] = []
    copied: dict[str, str] = {}
    extras: dict[str, int] = {}
    problems: list[str] = []
    advice: set[str] = set()
    likely = _likely_ties(plans)
    whole: list[str] = []  # those that can be taken from one model
    names = dict.fromkeys(name for plan in (*plans, source_plan) for name in plan)
    ignored, known = _named("--ignore", ignore, names), _named("--learnt", learnt, names)
    products = products_of(models, keep=ignored, source=source, resized=heads not in (None, "drop"))
    together = products.members
    for name in names:
        having = [k for k, plan in enumerate(plans) if name in plan]
        if name in ignored:
            if name in source_plan:
                copied[name] = "ignored"
            else:
                dropped.append(name)
        elif not having:
            continue  # the source's alone
        elif len(having) < len(plans):
            whose = _whose(extra, having)
            kept = whose is not None or extra == "error"
            tied = _other_half(name, plans[having[0]][name], likely) if kept else None
            if tied is not None:
                problems.append(_untied(name, tied, plans, having))
                advice.add("--extra drop")
                whole.append(name)
            elif extra == "error":
                problems.append(_absent(name, plans, having))
                advice.add("--extra keep|keep-a|drop")
            elif whose is None:
                dropped.append(name)
            else:
                extras[name] = whose
        else:
            sizes = [plan[name][1] for plan in plans]
            kinds = {_averages(plan[name][0]) for plan in plans}
            if name in products.fixed and name in source_plan:
                copied[name] = products.fixed[name]
            elif len(set(sizes)) > 1:
                if not _is_head(sizes) or kinds != {True}:
                    problems.append(_differ(name, plans))
                elif heads is None:
                    problems.append(_differ(name, plans))
                    advice |= {HEADS_ADVICE} if len(plans) == 2 else set()
                    whole += [name] if len(plans) > 2 else []
                elif heads == "drop":
                    dropped.append(name)
                else:
                    joined.append(name)
            elif len(kinds) > 1:
                problems.append(_differ(name, plans))
            elif kinds == {True} or name in together:
                averaged.append(name)
            elif name not in source_plan:
                problems.append(f"{name}  holds integers, and is not in the file that these are copied from")
            else:
                copied[name] = INTEGERS
    if problems:
        raise SpecError(
            "the models cannot be averaged: they do not have the same tensors",
            problems=problems,
            hint=_next(advice, whole),
        )
    if not averaged and not joined:
        raise SpecError("the models have no floating-point tensor in common: there is nothing to average")
    sorted_ = tuple(averaged), copied, tuple(joined), extras, tuple(dropped)
    found = Parts(*sorted_, learnt=frozenset(known), products=products)
    if values:
        check_values(models, found)
    return found


def check_values(models: Sequence[Tensors], parts: Parts) -> None:
    """Raise SpecError where tables or integers, which no training moves, differ: this reads values."""
    members = parts.products.members
    averaged = (name for name in parts.averaged if name not in parts.learnt)
    names = [name for name in (*averaged, *parts.copied) if name not in members]
    check_still(models, names, parts.copied, IGNORED)


def by_spec(models: Sequence[Tensors], ignored: Collection[str]) -> Parts:
    """The same of models that one spec fits: all is averaged but integers and what the spec ignores."""
    plan = plan_of(models[0])
    products = products_of(models, keep=ignored) if len(models) > 1 else Products()
    members = products.members.keys() - ignored
    whole = [name for name, (dtype, _) in plan.items() if not dtype.is_floating_point and name not in members]
    copied = {**products.fixed, **dict.fromkeys(whole, INTEGERS), **dict.fromkeys(ignored, "ignored")}
    averaged = tuple(name for name in plan if name not in copied)
    check_still(models, [name for name in plan if name not in members], copied)
    return Parts(averaged, copied, products=products)


def check_still(
    models: Sequence[Tensors], names: Iterable[str], copied: Mapping[str, str], hint: str = IN_SPEC
) -> None:
    """Raise SpecError where tables or integers among these tensors, which nothing moves, differ.

    Of those that are `copied`, integers alone are looked at.
    """
    if len(models) > 1:
        plan, names = plan_of(models[0]), [name for name in names if copied.get(name, INTEGERS) == INTEGERS]
        integers = [name for name in names if name in plan and not _averages(plan[name][0])]
        check_untrained(models, [name for name in names if name not in {*integers}], integers, hint)


def _next(advice: Collection[str], whole: Sequence[str]) -> str:
    """What to do about tensors that are not the same: choices, and what may be copied from one model."""
    if whole and len(whole) <= MOST:
        named = " ".join(f"--ignore {shlex.quote(name)}" for name in whole)
        advice = [*advice, f"{named} (the first model's, or that of --copy-from FILE)"]
    if not advice:
        return "See what a file holds with: rebasin inspect FILE"
    return f"If that is meant, say what shall become of them: {', or '.join(sorted(advice))}"


def _whose(extra: str, having: Sequence[int]) -> int | None:
    """Whose tensor that not all have is kept; None where it is not."""
    return {"keep": having[0], "keep-a": 0 if having[0] == 0 else None}.get(extra)


def _likely_ties(plans: Sequence[Plan]) -> list[dict[Any, str]]:
    """By dtype and shape: an embedding that all models have, and a layer that gives logits, by names."""
    plan, *others = plans
    found: list[dict[Any, str]] = [{}, {}]
    for name, planned in plan.items():
        for kind, word in enumerate((EMBEDDING, LOGITS)):
            if len(planned[1]) > 1 and word.search(name) and all(o.get(name) == planned for o in others):
                found[kind].setdefault(planned, name)
    return found


def _other_half(name: str, planned: Any, likely: Sequence[Mapping[Any, str]]) -> str | None:
    """The tensor that all have and those without `name` may use in its place: an embedding, for logits.

    By names and shapes: values were compared before (`averages.names`), and no tie where both are there.
    """
    embeddings, logits = likely
    if EMBEDDING.search(name):
        return embeddings.get(planned) or logits.get(planned)
    return embeddings.get(planned) if LOGITS.search(name) else None


def _untied(name: str, tied: str, plans: Sequence[Plan], having: Sequence[int]) -> str:
    """What keeps a tensor from being taken whole where the other one that it may be is averaged."""
    lacking = _models(k for k in range(len(plans)) if k not in having)
    return f"{name}  is absent in {lacking}, which may use {tied} for it; elsewhere they are two"


def _is_head(sizes: Sequence[tuple[int, ...]]) -> bool:
    """Whether only the number of rows differs."""
    return all(len(size) >= 1 for size in sizes) and len({size[1:] for size in sizes}) == 1


def _averages(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _absent(name: str, plans: Sequence[Plan], having: Sequence[int]) -> str:
    """The few are named, whether these have it or lack it."""
    lacking = [k for k in range(len(plans)) if k not in having]
    kind = show(plans[having[0]][name])
    if len(lacking) > len(having):
        return f"{name}  is {kind} in {_models(having)}, absent elsewhere"
    return f"{name}  is absent in {_models(lacking)}, {kind} elsewhere"


def _differ(name: str, plans: Sequence[Plan]) -> str:
    """What most have is "elsewhere"; where no kind is what most have, all are named."""
    having: dict[str, list[int]] = {}
    for k, plan in enumerate(plans):
        having.setdefault(show(plan[name]), []).append(k)
    most = max(having, key=lambda kind: len(having[kind]))
    usual = len(having[most]) > max(2, len(plans) // 2)
    told = [f"{kind} in {_models(where)}" for kind, where in having.items() if not (usual and kind == most)]
    return f"{name}  is {', '.join(told + [f'{most} elsewhere'] * usual)}"


def _models(numbers: Iterable[int]) -> str:
    """As whoever reads the message puts names in their place: each number has its "model"."""
    return ", ".join(f"model {k + 1}" for k in numbers)


def show(planned: tuple[torch.dtype, tuple[int, ...]]) -> str:
    dtype, shape = planned
    return f"{str(dtype).removeprefix('torch.')} {'×'.join(map(str, shape)) or 'scalar'}"
