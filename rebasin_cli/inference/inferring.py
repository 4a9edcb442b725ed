"""Infer a spec: export the network, follow its units, write down what may be permuted and prove it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import networks
from ..datasets.batches import describe
from ..errors import NetworkError, NotProven
from ..graph.program import Program
from ..graph.tracing import export, with_other_answers
from ..networks.forward import arguments_of
from ..networks.returned import Kept
from ..networks.state import fresh, own_state
from ..proof import prove as proving
from ..proof import random_weights
from ..registry.user_code import user_code
from ..runtime.seeds import generator
from ..symmetry.folds import Folds
from .groups.symmetries import Symmetries, looked_at
from .rules.alike import Alike, alike
from .rules.flow import follow, meeting
from .rules.missed_freedom import Missed, missed
from .rules.walk import COMPLEX
from .rules.writable import drop_unwritable
from .text.spec_text import REFUSED, Inferred, Writing, inferred_from, told_by
from .text.unit_names import names

GAINS = (1.0, 1.0, 4.0, 4.0)  # of other weights, where values decide what runs


def infer(
    module: nn.Module,
    args: tuple[Any, ...] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    prove: bool = True,
    groups: bool = False,
    name: str = "inferred",
) -> Inferred:
    """The symmetries of a network, permutations or with `groups` all, from one batch of inputs
    `module(*args, **kwargs)`.

    Every axis of every tensor is given an unknown permutation; each operation of the exported graph says
    which of them must be equal, and inputs, outputs and operations that are not understood say which must
    be none. What is left is written down. Outputs are all that the network returns, but for caches, hidden
    states, attentions, and what `not_kept` names (keys, attributes, indices, dotted ways); what `output`
    picks by key or index, since it is measured, is in any case one. With `prove`, the result is proven on
    the inputs, and words that fail (a mistake of this program) are taken out. Values are not looked at:
    symmetries that hold for some weights only are not found, nor those that the notation cannot write.

    Raises NetworkError where the network cannot be run or traced or has no such output, SpecError where a
    tensor's name cannot be written in a spec, UsageError for names of `not_kept` that nothing has.
    """
    args, kwargs = (args,) if isinstance(args, torch.Tensor) else tuple(args), dict(kwargs or {})
    try:
        program = _exported(module, args, kwargs)
    except NetworkError:
        networks.check_values(module)
        given = " and ".join(describe(some) for some in (args, kwargs) if some)
        with fresh(module, args, kwargs), torch.no_grad(), user_code(f"the network fails on inputs {given}"):
            module(*args, **kwargs)  # does it run at all? that error is the plainer one
        raise
    kept = Kept(output, tuple(not_kept))
    walk = follow(module, program, kept)
    drop_unwritable(walk)
    batch = networks.batch_of(module, args, kwargs)
    lists = sorted(alike(module, walk, program, batch, kept), key=lambda one: -len(one.numbers))
    write = Writing(module, program, walk, kept, name, groups, lists)
    inferred = write()
    if prove and inferred.fitted.words:
        inferred = _proven(write, inferred, batch)
    forgone = missed(walk, write.unlisted)
    if any(tensor.is_complex() for tensor in module.state_dict().values()):
        forgone = tuple(map(partial(_with_digits, module, program, kept, inferred), forgone))
    outputs = kept.of(program.returned)
    return replace(inferred, missed=forgone, kept=outputs.kept, not_kept=outputs.left_out)


def _exported(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
    """The graph; where values decide, with those of other weights and answers, too. Raises NetworkError."""
    program = export(module, args, kwargs, numbers=True)
    if program.general:
        return program
    others = []
    with own_state(module, torch.float32), torch.no_grad():
        for trial, gain in enumerate(GAINS):
            rng = generator(trial, "other weights")
            with contextlib.suppress(Exception):  # whatever the network raises on such
                random_weights.draw(module, rng)
                with fresh(module, args, kwargs), random_weights.Scaling(module):
                    module(*args, **kwargs)
                random_weights.strengthen(module, gain, rng)
                others.append(export(module, args, kwargs, numbers=True))
    found = with_other_answers(module, args, kwargs, program)
    asked = {place for one in (program, *found.others) for place in one.answers.asked}
    certain = found.certain and all(one.answers.asked.keys() <= asked for one in others)
    return replace(found, others=(*others, *found.others), certain=certain)


def _with_digits(module: nn.Module, program: Any, kept: Kept, inferred: Inferred, one: Missed) -> Missed:
    """What complex weights cost: what a spec that moves them has more."""
    if COMPLEX not in one.what:
        return one
    walk = follow(module, program, kept, whole=True)
    drop_unwritable(walk)
    found = Symmetries()
    whole = inferred_from(module, walk, "whole", found, told_by(module, walk, found, ()), False)
    return replace(one, log10=whole.fitted.log10_symmetries() - inferred.fitted.log10_symmetries())


def folds_of(
    module: nn.Module, inputs: Any, output: str | int | None = None, not_kept: Sequence[str] = ()
) -> Folds:
    """What the canonical form of a network folds away; `inputs` is one batch. Raises as `infer`."""
    program = _exported(module, *arguments_of(inputs))
    kept = Kept(output, tuple(not_kept))
    walk = follow(module, program, kept)
    drop_unwritable(walk)
    return looked_at(module, program, walk, kept).folds


def _proven(write: Writing, inferred: Inferred, inputs: Any) -> Inferred:
    """The spec after the proof; words that break the function alone, or else all, are frozen.

    So are those of tensors that could not be tested, and those that they meet. One whose group does not hold
    is left with its permutations first.
    """
    walk, held = write.walk, set[str]()
    for _ in range(3 + bool(inferred.lists)):
        try:
            kept = write.kept
            proof = proving.prove(
                write.module,
                inferred.fitted,
                inputs,
                output=kept.output,
                not_kept=kept.not_kept,
                held=held,
            )
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
            met = meeting(walk, write.program, error.untested)
            every = not (error.words or met)
            held |= {*error.untested}
            for var, word in names(walk.units, walk.tensors, walk.used, walk.hints).items():
                if word in error.words or var in met or every:
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
