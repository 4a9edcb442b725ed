"""Infer a spec: export the network, follow its units, write down what may be permuted and prove it."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...errors import NetworkError, NotProven, SpecError, UsageError
from ...evaluation import evaluating, forward
from .. import prove as proving
from ..fitting import fit
from ..notation import Fixed, Word, rewrite
from ..parsing import parse
from ..prove import Proof
from ..spec import FittedSpec, Spec
from .axes import Var, constants, variables
from .following import Walk, follow
from .rendering import names, text_of, unsized
from .tracing import casts, export

NO_SIZE = "no axis tells its size apart from that of its neighbour, so the notation cannot say it"
NO_EVIDENCE = "only running statistics have these units, which are no evidence"
ALONE = "no other axis has these units, perhaps because the example inputs leave them without effect"
REFUSED = "the proof refused it"
LOOSE = 1e-5  # the tolerance where the network itself computes in float32


@dataclass(frozen=True)
class Frozen:
    """Units that stay where they are: `why`, and the axes that have them ("fc.weight axis 0")."""

    why: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Inferred:
    """A spec read off a network: its text, what it means for the tensors, and what it leaves out."""

    text: str
    fitted: FittedSpec
    reasons: tuple[Frozen, ...]
    proof: Proof | None = None

    @property
    def spec(self) -> Spec:
        return self.fitted.spec


def infer(
    module: nn.Module,
    args: tuple[Any, ...] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    prove: bool = True,
    name: str = "inferred",
) -> Inferred:
    """The permutation symmetries of a network, from one batch of inputs `module(*args, **kwargs)`.

    Every axis of every tensor is given an unknown permutation; each operation of the exported graph says
    which of them must be equal, and inputs, outputs and operations that are not understood say which must
    be none. What is left is written down. With `prove`, the result is proven on the inputs, and words that
    fail (a mistake of this program) are taken out. Values are not looked at: symmetries that hold for
    some weights only are not found, nor those that the notation cannot write.

    Raises NetworkError where the network cannot be run or traced, SpecError where a tensor's name cannot
    be written in a spec.
    """
    args, kwargs = (args,) if isinstance(args, torch.Tensor) else tuple(args), dict(kwargs or {})
    try:
        program = export(module, args, kwargs)
    except NetworkError:
        with evaluating(module), torch.no_grad():  # does it run at all? that error is the plainer one
            forward(lambda: module(*args, **kwargs), ())
        raise
    walk = follow(module, program)
    _drop_unwritable(walk)
    inferred = _write(module, walk, name)
    if not prove or not inferred.fitted.words:
        return inferred
    tolerance = LOOSE if casts(program) else proving.TOLERANCE
    return _proven(module, walk, inferred, _inputs(module, args, kwargs), name, tolerance)


def _drop_unwritable(walk: Walk) -> None:
    """Freeze what a spec cannot express, or nothing could be matched by."""
    resolve = walk.units.resolve
    evidence = {
        var
        for name, axes in walk.tensors.items()
        if not name.endswith(("running_mean", "running_var"))
        for axis in axes
        for var in variables(resolve(axis))
    }
    for axes in walk.tensors.values():
        for var in {var for axis in axes for var in variables(resolve(axis))} - evidence:
            walk.freeze(var, NO_EVIDENCE)
    once = {id(axes): axes for axes in walk.tensors.values()}  # tied tensors count as one
    seen = Counter(var for axes in once.values() for axis in axes for var in set(variables(resolve(axis))))
    for var, count in seen.items():
        if count == 1:
            walk.freeze(var, ALONE)
    while open_ := unsized(walk.units, walk.tensors):
        walk.freeze(open_[-1] if len(open_) == 1 else open_[1], NO_SIZE)


def _write(module: nn.Module, walk: Walk, name: str) -> Inferred:
    words = names(walk.units, walk.tensors, walk.used, walk.hints)
    title = f"inferred from {type(module).__name__}"
    text = text_of(walk.units, walk.tensors, words, description=title)
    shapes = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    fitted = fit(parse(text, name=name, source="the inferred spec"), shapes)
    expected = {word: var.size for var, word in words.items()}
    if fitted.words != expected:  # never seen; sizes that differ would be another spec
        raise SpecError(
            "the inferred spec reads back with other sizes", problems=[f"{fitted.words} {expected}"]
        )
    return Inferred(text, fitted, _reasons(walk))


def _reasons(walk: Walk) -> tuple[Frozen, ...]:
    found: dict[str, list[str]] = {}
    for name, axes in walk.tensors.items():
        for k, axis in enumerate(axes):
            whole = walk.units.resolve(axis)
            for why in dict.fromkeys(constant.why for constant in constants(whole) if constant.why):
                part = "" if not list(variables(whole)) else " (in part)"
                found.setdefault(why, []).append(f"{name} axis {k}{part}")
    return tuple(Frozen(why, tuple(places)) for why, places in found.items())


def _inputs(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """One batch as `prove` takes it: a tuple of arguments, or everything by keyword."""
    if not kwargs:
        return args
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError) as cause:
        raise NetworkError(f"the inputs do not fit the network's forward: {cause}") from None
    if not bound.kwargs:  # all can be given by position
        return bound.args
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) and p.name in bound.arguments for p in parameters):
        raise UsageError("some inputs go by position only and others by name, which cannot be proven")
    named = {p.name: bound.arguments[p.name] for p in parameters if p.name in bound.arguments}
    for p in parameters:
        if p.kind is p.VAR_KEYWORD:
            named |= named.pop(p.name, {})
    return named


def _proven(
    module: nn.Module, walk: Walk, inferred: Inferred, inputs: Any, name: str, tolerance: float
) -> Inferred:
    """The spec after the proof; words that break the function alone, or else all, are frozen."""
    for _ in range(3):
        try:
            proof = proving.prove(module, inferred.fitted, inputs, tolerance=tolerance)
        except NotProven as error:
            why = f"{REFUSED}: {error.message.partition(': ')[2]}"
            words = names(walk.units, walk.tensors, walk.used, walk.hints)
            wrong = _wrong(module, inferred, inputs, words, tolerance)
            for var in wrong:
                walk.freeze(var, why)
            _drop_unwritable(walk)
            inferred = _write(module, walk, name)
            if not inferred.fitted.words:
                return inferred
        else:
            return Inferred(inferred.text, inferred.fitted, inferred.reasons, proof)
    for axes in walk.tensors.values():
        walk.freeze(axes, REFUSED)
    return _write(module, walk, name)


def _wrong(
    module: nn.Module, inferred: Inferred, inputs: Any, words: dict[Var, str], tolerance: float
) -> list[Var]:
    """The words that fail when permuted alone; all of them if none does."""
    found = []
    for var, word in words.items():
        try:
            proving.prove(module, _only(inferred.fitted, word), inputs, trials=1, tolerance=tolerance)
        except NotProven:
            found.append(var)
    return found or list(words)


def _only(fitted: FittedSpec, word: str) -> FittedSpec:
    """The spec with all other words left where they are."""

    def leaf(axis):
        if isinstance(axis, Word) and axis.name != word:
            return Fixed(fitted.words[axis.name])
        return axis

    tensors = {t: tuple(rewrite(axis, leaf) for axis in axes) for t, axes in fitted.tensors.items()}
    return FittedSpec(
        fitted.spec, {word: fitted.words[word]}, tensors, fitted.shapes, fitted.statistics, fitted.ignored
    )
