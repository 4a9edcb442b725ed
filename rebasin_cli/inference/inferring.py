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
from .alike import Alike, alike
from .axes import constants, variables
from .following import follow
from .grouping import Grouped
from .listing import Lines, Unlisted, listed
from .missing import Missed, missed
from .naming import names
from .prove import Proof
from .rendering import lines_of, spec_text
from .symmetries import Symmetries, looked_at, sided
from .tracing import export
from .walk import COMPLEX, Walk
from .writable import drop_unwritable, sizes, within

REFUSED = "the proof refused it"
LISTED = "modules of a list change places as they are"


@dataclass(frozen=True)
class Frozen:
    """Units that stay where they are: `why`, and the axes that have them ("fc.weight axis 0")."""

    why: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Inferred:
    """A spec read off a network: its text, what it means for the tensors, and what it leaves out.

    Where groups were asked for, `folds` are what the canonical form folds away, and `no_larger` says of each
    word why its group is no larger. `lists` are the modules that change places, each with the words of that.
    """

    text: str
    fitted: FittedSpec
    reasons: tuple[Frozen, ...]
    proof: Proof | None = None
    missed: tuple[Missed, ...] = ()
    folds: Folds = Folds()
    no_larger: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lists: tuple[tuple[Alike, tuple[str, ...]], ...] = ()

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
    batch = networks.batch_of(module, args, kwargs)
    lists = sorted(alike(module, walk, program, batch, output), key=lambda one: -len(one.numbers))
    write = _Writing(module, program, walk, output, name, groups, lists)
    inferred = write()
    if prove and inferred.fitted.words:
        inferred = _proven(write, inferred, batch)
    forgone = missed(walk, write.unlisted)
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
    found = Symmetries()
    more = _write(module, walk, "whole", found, _told(module, walk, found, ()), False)
    more = more.fitted.log10_symmetries()
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
    alike: list[Alike] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    unlisted: list[tuple[Alike, str]] = field(default_factory=list)

    def __call__(self) -> Inferred:
        found = Symmetries()
        if self.groups:
            found = looked_at(self.module, self.program, self.walk, self.output)
        told = _told(self.module, self.walk, found, self.refused)
        for one in list(self.alike):
            try:
                told = _with_list(told, one)
            except (Unlisted, SpecError) as error:
                self.drop(one, str(error) if isinstance(error, Unlisted) else error.message)
        return _write(self.module, self.walk, self.name, found, told, self.groups)

    def drop(self, one: Alike, why: str) -> None:
        """Leave the modules of a list where they are."""
        self.alike.remove(one)
        self.unlisted.append((one, why))


@dataclass(frozen=True)
class _Told:
    """What is to be written: lines, the sizes that its words then have, and what is known of them.

    `listed` are the lists that it says, each with the words that it made.
    """

    lines: Lines
    expected: Mapping[str, int]
    why: Mapping[str, tuple[str, ...]]
    listed: tuple[tuple[Alike, tuple[str, ...]], ...] = ()


def _told(module: nn.Module, walk: Walk, found: Symmetries, refused: Collection[str]) -> _Told:
    words = names(walk.units, walk.tensors, walk.used, walk.hints)
    parents = {var: walk.units.parents(var) for var in words}
    written = {var: f"{word}*" if parents[var] else word for var, word in words.items()}
    grouped = {words[var]: its for var, its in found.groups.items() if var in words}
    grouped |= {word: Grouped(why=(REFUSED,)) for word in refused if word in grouped}
    tensors, written = sided(walk, written, {v: grouped.get(word, Grouped()) for v, word in words.items()})
    kinds = {word: its.kind for word, its in grouped.items() if its.kind != PERMUTATION}
    tensors, written, turned = placing.write(tensors, written, found.planes, refused)
    kinds |= {word: its.kind for word, its in turned.items()}
    told = {words[var]: size for var, size in sizes(walk.units, walk.tensors).items()}
    told |= {word: its.key.turned for word, its in turned.items()}
    lie = {words[var]: words[parent] for var, parent in within(walk.units, walk.tensors).items()}
    expected = {
        word: var.size * math.prod(parent.size for parent in parents[var]) for var, word in words.items()
    }
    expected |= {word: its.key.heads * its.key.turned for word, its in turned.items()}
    why = {word: its.why for word, its in grouped.items() if its.why}
    why |= dict.fromkeys(turned, (planes.WHY,))
    return _Told(Lines(*lines_of(walk.units, tensors, written), told, lie, kinds), expected, why)


def _with_list(told: _Told, one: Alike) -> _Told:
    """The same with the modules of one list in an order of their own. Raises Unlisted."""
    lines, made = listed(told.lines, one)
    gone = {word for its in made.values() for word in its}
    expected = {word: size for word, size in told.expected.items() if word not in gone}
    expected |= {
        w: sum(told.expected[x] for x in its) if its else len(one.numbers) for w, its in made.items()
    }
    why = {word: its for word, its in told.why.items() if word not in gone} | dict.fromkeys(made, (LISTED,))
    return _Told(lines, expected, why, (*told.listed, (one, tuple(made))))


def _write(
    module: nn.Module, walk: Walk, name: str, found: Symmetries, told: _Told, groups: bool
) -> Inferred:
    shapes = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    text = spec_text(**vars(told.lines), description=f"inferred from {type(module).__name__}", shapes=shapes)
    fitted = fit(parse(text, name=name, source="the inferred spec"), shapes)
    if fitted.words != told.expected:  # never seen; sizes that differ would be another spec
        raise SpecError(
            "the inferred spec reads back with other sizes", problems=[f"{fitted.words} {told.expected}"]
        )
    moved = {f"{name} axis {k}" for one, _ in told.listed for name, k in one.beside}
    return Inferred(
        text,
        fitted,
        _reasons(walk, found, moved),
        folds=found.folds,
        no_larger={word: why for word, why in told.why.items() if groups},
        lists=told.listed,
    )


def _reasons(walk: Walk, groups: Symmetries, moved: Collection[str] = ()) -> tuple[Frozen, ...]:
    """Why axes stay, but for those that were `moved` since."""
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
    found = {why: [place for place in places if place not in moved] for why, places in found.items()}
    return tuple(Frozen(why, tuple(places)) for why, places in found.items() if places)


def _proven(write: _Writing, inferred: Inferred, inputs: Any) -> Inferred:
    """The spec after the proof; words that break the function alone, or else all, are frozen.

    One whose group does not hold is left with its permutations first.
    """
    walk = write.walk
    for _ in range(3 + bool(inferred.lists)):
        try:
            proof = proving.prove(write.module, inferred.fitted, inputs, output=write.output)
        except NotProven as error:
            if (wrong := _refused_lists(inferred, error)) and not error.grouped:
                for one in wrong:
                    write.drop(one, REFUSED)
                inferred = write()
                continue
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
    for one in list(write.alike):
        write.drop(one, REFUSED)
    return write()


def _refused_lists(inferred: Inferred, error: NotProven) -> list[Alike]:
    """Lists whose words the proof refused; all of them where it names no word."""
    return [one for one, words in inferred.lists if not error.words or {*words} & {*error.words}]
