"""Infer a spec: export the network, follow its units, write down what may be permuted and prove it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import networks
from ..datasets._batches import describe
from ..errors import NetworkError, NotProven, SpecError
from ..groups.folds import Folds
from ..networks.state import fresh
from ..registry.user_code import user_code
from ..spec.fitting import fit
from ..spec.groups import PERMUTATION
from ..spec.parsing import parse
from ..spec.spec import FittedSpec, Spec
from . import placing, planes
from . import prove as proving
from .axes import constants, variables
from .following import follow
from .grouping import Grouped
from .missing import Missed, missed
from .naming import names
from .prove import Proof
from .rendering import text_of
from .symmetries import Symmetries, looked_at, sided
from .tracing import export
from .walk import COMPLEX, Walk
from .writable import drop_unwritable, sizes, within

REFUSED = "the proof refused it"


@dataclass(frozen=True)
class Frozen:
    """Units that stay where they are: `why`, and the axes that have them ("fc.weight axis 0")."""

    why: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Inferred:
    """A spec read off a network: its text, what it means for the tensors, and what it leaves out.

    Where groups were asked for, `folds` are what the canonical form folds away, and `no_larger` says of each
    word why its group is no larger.
    """

    text: str
    fitted: FittedSpec
    reasons: tuple[Frozen, ...]
    proof: Proof | None = None
    missed: tuple[Missed, ...] = ()
    folds: Folds = Folds()
    no_larger: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def refused(self) -> tuple[Frozen, ...]:
        """What the proof took out."""
        return tuple(frozen for frozen in self.reasons if frozen.why.startswith(REFUSED))

    @property
    def spec(self) -> Spec:
        return self.fitted.spec


def infer(
    module: nn.Module,
    args: tuple[Any, ...] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    output: str | int | None = None,
    prove: bool = True,
    groups: bool = False,
    name: str = "inferred",
) -> Inferred:
    """The symmetries of a network, permutations or with `groups` all, from one batch of inputs
    `module(*args, **kwargs)`.

    Every axis of every tensor is given an unknown permutation; each operation of the exported graph says
    which of them must be equal, and inputs, outputs and operations that are not understood say which must
    be none. What is left is written down. With `prove`, the result is proven on the inputs, and words that
    fail (a mistake of this program) are taken out. Values are not looked at: symmetries that hold for
    some weights only are not found, nor those that the notation cannot write.

    Raises NetworkError where the network cannot be run or traced or has no such output, SpecError where a
    tensor's name cannot be written in a spec.
    """
    args, kwargs = (args,) if isinstance(args, torch.Tensor) else tuple(args), dict(kwargs or {})
    try:
        program = export(module, args, kwargs)
    except NetworkError:
        given = " and ".join(describe(some) for some in (args, kwargs) if some)
        with fresh(module, args, kwargs), torch.no_grad(), user_code(f"the network fails on inputs {given}"):
            module(*args, **kwargs)  # does it run at all? that error is the plainer one
        raise
    walk = follow(module, program, output)
    drop_unwritable(walk)
    write = _Writing(module, program, walk, output, name, groups)
    inferred, batch = write(), networks.batch_of(module, args, kwargs)
    if prove and inferred.fitted.words:
        inferred = _proven(write, inferred, batch)
    forgone = missed(module, walk, program, batch, output)
    if any(tensor.is_complex() for tensor in module.state_dict().values()):
        forgone = tuple(map(partial(_with_digits, module, program, output, inferred), forgone))
    return replace(inferred, missed=forgone)


def _with_digits(
    module: nn.Module, program: Any, output: str | int | None, inferred: Inferred, one: Missed
) -> Missed:
    """What complex weights cost: what a spec that moves them has more."""
    if COMPLEX not in one.what:
        return one
    walk = follow(module, program, output, whole=True)
    drop_unwritable(walk)
    more = _write(module, walk, "whole", Symmetries(), ()).fitted.log10_symmetries()
    return replace(one, log10=more - inferred.fitted.log10_symmetries())


def folds_of(module: nn.Module, inputs: Any, output: str | int | None = None) -> Folds:
    """What the canonical form of a network folds away; `inputs` is one batch. Raises NetworkError."""
    if isinstance(inputs, Mapping):
        args, kwargs = (), dict(inputs)
    else:
        args, kwargs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}
    program = export(module, args, kwargs)
    walk = follow(module, program, output)
    drop_unwritable(walk)
    return looked_at(module, program, walk, output).folds


@dataclass(frozen=True)
class _Writing:
    """All that a spec is written from; `refused` are words that the proof left with permutations only."""

    module: nn.Module
    program: torch.export.ExportedProgram
    walk: Walk
    output: str | int | None
    name: str
    groups: bool
    refused: set[str] = field(default_factory=set)

    def __call__(self) -> Inferred:
        found = Symmetries()
        if self.groups:
            found = looked_at(self.module, self.program, self.walk, self.output)
        return _write(self.module, self.walk, self.name, found, self.refused)


def _write(module: nn.Module, walk: Walk, name: str, found: Symmetries, refused: Collection[str]) -> Inferred:
    words = names(walk.units, walk.tensors, walk.used, walk.hints)
    parents = {var: walk.units.parents(var) for var in words}
    written = {var: f"{word}*" if parents[var] else word for var, word in words.items()}
    grouped = {words[var]: its for var, its in found.groups.items() if var in words}
    grouped |= {word: Grouped(why=(REFUSED,)) for word in refused if word in grouped}
    tensors, written = sided(walk, written, {v: grouped.get(word, Grouped()) for v, word in words.items()})
    kinds = {word: its.kind for word, its in grouped.items() if its.kind != PERMUTATION}
    tensors, written, turned = placing.write(tensors, written, found.planes, refused)
    kinds |= {word: its.kind for word, its in turned.items()}
    title = f"inferred from {type(module).__name__}"
    told = {words[var]: size for var, size in sizes(walk.units, walk.tensors).items()}
    shapes = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    told |= {word: its.key.turned for word, its in turned.items()}
    lie = {words[var]: words[parent] for var, parent in within(walk.units, walk.tensors).items()}
    text = text_of(
        walk.units,
        tensors,
        written,
        description=title,
        sizes=told,
        within=lie,
        groups=kinds,
        shapes=shapes,
    )
    fitted = fit(parse(text, name=name, source="the inferred spec"), shapes)
    expected = {
        word: var.size * math.prod(parent.size for parent in parents[var]) for var, word in words.items()
    }
    expected |= {word: its.key.heads * its.key.turned for word, its in turned.items()}
    if fitted.words != expected:  # never seen; sizes that differ would be another spec
        raise SpecError(
            "the inferred spec reads back with other sizes", problems=[f"{fitted.words} {expected}"]
        )
    why = {word: its.why for word, its in grouped.items() if its.why}
    why |= dict.fromkeys(turned, (planes.WHY,))
    return Inferred(text, fitted, _reasons(walk, found), folds=found.folds, no_larger=why)


def _reasons(walk: Walk, groups: Symmetries) -> tuple[Frozen, ...]:
    found: dict[str, list[str]] = {}
    normed: dict[tuple[str, int], list[str]] = {}
    for rows in groups.normed:
        for place in rows.places:
            normed.setdefault(place, []).append(rows.normed)
    for name, axes in walk.tensors.items():
        for k, axis in enumerate(axes):
            whole = walk.units.resolve(axis)
            said = [constant.why for constant in constants(whole) if constant.why]
            for why in dict.fromkeys([*said, *normed.get((name, k), ())]):
                part = "" if not list(variables(whole)) else " (in part)"
                found.setdefault(why, []).append(f"{name} axis {k}{part}")
    return tuple(Frozen(why, tuple(places)) for why, places in found.items())


def _proven(write: _Writing, inferred: Inferred, inputs: Any) -> Inferred:
    """The spec after the proof; words that break the function alone, or else all, are frozen.

    One whose group does not hold is left with its permutations first.
    """
    walk = write.walk
    for _ in range(3):
        try:
            proof = proving.prove(write.module, inferred.fitted, inputs, output=write.output)
        except NotProven as error:
            if error.grouped:
                write.refused.update(error.words)
                inferred = write()
                continue
            why = f"{REFUSED}: {error.message.partition(': ')[2]}"
            for var, word in names(walk.units, walk.tensors, walk.used, walk.hints).items():
                if word in error.words or not error.words:
                    walk.freeze(var, why)
            drop_unwritable(walk)
            inferred = write()
            if not inferred.fitted.words:
                return inferred
        else:
            return replace(inferred, proof=proof)
    for axes in walk.tensors.values():
        walk.freeze(axes, REFUSED)
    return write()
