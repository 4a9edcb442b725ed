"""A spec is believed only after it is proven: permute at random, and compare what the network computes.

Weights, norm statistics and affine parameters are drawn at random, so that neither zeros (a
zero-initialised head) nor ones (a fresh norm) hide a mistake, and of a size at which no nonlinearity
saturates (`random_weights`). A proof says something of a tensor only where the outputs would tell if its
units were in another order; that is looked at, too (`visibility`). The first trial takes the inputs that
are given, the others draw theirs anew, smaller where the network takes those. Everything runs in
float64, also what a network itself would compute in less; where an operation knows no float64, in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import networks
from ..errors import NotProven, UsageError
from ..networks.returned import Kept
from ..networks.tied import completed
from ..runtime.seeds import generator
from ..spec.notation import words_of
from ..spec.spec import FittedSpec
from . import group_elements, stale, training_mode, visibility
from .distance import MARGIN
from .permuted import Changed, apart, draw
from .runs import Runs, in_finest
from .trials import answers

MORE = 4  # trials for tensors whose effect the others could not see, such as those of units that were dead
SHOWN = 10  # tensors that a refusal names


@dataclass(frozen=True)
class Proof:
    """`largest_difference`: of any number of the outputs, relative to its size (`own_sizes`), over `trials`
    draws.

    `tolerance` is what it was held against: `MARGIN` times the least rounding that there is, and times the
    rounding that is measured only where outputs differ by more. `words` says how
    large it was when that word alone was permuted (with the blocks of starred words that lie within it; of a
    starred word within its blocks alone). `without_effect`: tensors that the compared outputs do not depend
    on in any way, whatever their values, so that no order of theirs can be wrong; `not_seen` are those of
    them that no output is computed from, such as heads that only training uses: their order is not proven.
    `kept` and `not_kept` name what of all that the network returns was compared, and what not;
    `not_in_training` what does not stay in training mode, of which nothing is proven; `decided_at` the lines
    where values decide what runs: of what they let run in no trial nothing is proven, either.
    """

    largest_difference: float
    words: dict[str, float]
    trials: int
    tolerance: float
    precision: str = "float64"
    without_effect: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    not_kept: tuple[str, ...] = ()
    not_in_training: tuple[str, ...] = ()
    decided_at: tuple[str, ...] = ()


def prove(
    network: nn.Module,
    fitted: FittedSpec,
    inputs: Any,
    *,
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    seed: int = 0,
    trials: int = 2,
    each_word: bool = False,
    tolerance: float | None = None,
    held: Collection[str] = (),
) -> Proof:
    """Show that permuting by the spec leaves the network's outputs as they are.

    `inputs` is one batch, as the network takes it (tensor, tuple or dict); after the first trial another of
    its kind is drawn. All words are permuted together in each trial; `each_word` also permutes one word at
    a time, to name the culprit. All that the network returns is compared, but for caches, hidden states,
    attentions and what `not_kept` names (keys, attributes, indices, dotted ways); what `output` picks by key
    or index, since it is measured, is in any case. Without a `tolerance`, it is a multiple of rounding.
    Tensors that are `held` need no test: neither they nor what they meet moves. The network computes on a
    float64 copy of its tensors and is as it was afterwards: memory is those, their
    gradients, its activations and the largest tensor.

    Raises NotProven, also where a tensor has an effect that no trial could see; and NetworkError where the
    network has other tensors than the spec was fitted to, fails, or its outputs say nothing; UsageError for
    fewer than one of `trials`, and names of `not_kept` that nothing has.
    """
    if trials < 1:
        raise UsageError(f"{trials} trials prove nothing", hint="Leave out trials, or give 1 or more")
    networks.check(network, fitted.shapes)  # else nothing might be permuted, and all look well
    network, fitted = networks.on(network, "cpu"), completed(network, fitted)
    kept = Kept(output, tuple(not_kept))
    work = partial(_proven, fitted=fitted, held=held, seed=seed, trials=trials, each_word=each_word)
    return in_finest(network, inputs, kept, partial(work, tolerance=tolerance))


def _proven(
    runs: Runs,
    inputs: Any,
    *,
    fitted: FittedSpec,
    seed: int,
    trials: int,
    each_word: bool,
    tolerance: float | None,
    held: Collection[str],
) -> Proof:
    network, dtype = runs.network, runs.dtype
    allowed, measured = (MARGIN * torch.finfo(dtype).eps, False) if tolerance is None else (tolerance, True)
    groups, fitted = fitted, fitted.ordered
    largest = 0.0
    words: dict[str, float] = {}
    untested: set[str] | None = None  # at first all
    without_effect: list[str] = []
    unread: set[str] = set()
    torn: tuple[str, ...] = ()
    done = 0
    while done < trials or (untested and done < trials + MORE):
        # looked at closely is the last of them, whose inputs may be smaller, and then what that left open
        trial = trials - 1 - done if done < trials else done
        close = done == 0 or done >= trials
        found = answers(runs, inputs, seed, trial, close, own=done == trials)
        changed = Changed(runs, fitted, found.batch, found.outputs)
        most = _permuted(changed, fitted, seed, trial, done == 0)
        if not most <= allowed:  # it may be rounding
            rounding, before = changed.rounding(), measured
            allowed, measured = (allowed if before else _tolerance(rounding, dtype)), True
            most = _permuted(changed, fitted, seed, trial, done == 0)
            if done and not before and most <= allowed:  # what was seen with less may be hidden now
                largest, untested, without_effect, done = 0.0, None, [], 0
                unread.clear()
                continue
        largest = max(largest, most)
        if each_word or not largest <= allowed:  # which words are wrong?
            for word in sorted(fitted.words):
                one = changed(draw(fitted, [word], generator(seed, f"prove {word} {trial}")))
                words[word] = max(one, words.get(word, 0.0))
            largest = max(largest, *words.values(), 0.0)
        if not largest <= allowed:
            raise _refused(fitted, words, largest, allowed, changed.outputs(runs.last.names, allowed))
        if close:
            least = visibility.CLEAR * min(allowed, math.sqrt(torch.finfo(dtype).eps))
            open_ = found.effects.keys() if untested is None else untested
            hidden = [n for n, effect in found.effects.items() if n in open_ and not effect > least]
            if hidden:
                changed.undo()
            seen = visibility.look(
                network,
                changed.difference,
                hidden,
                least,
                generator(seed, "unseen"),
                0.0 if runs.drawn else 1.0,
            )
            untested = {*seen.untested} - {*held}
            # these may stand where nothing shows, behind what decided otherwise: another trial
            last = done == trials + MORE - 1
            if (runs.decides and not last) or (done == trials and not runs.drawn):
                untested |= {*seen.without_effect} - {*held}
                seen = visibility.Seen()
            without_effect += seen.without_effect
            unread |= found.unread & {*seen.without_effect}
        if not done:
            changed.undo()
            torn = training_mode.torn(runs, found.batch, fitted, found.outputs, seed)
        changed.undo(drawn=False)
        done += 1
    stale.check(runs, found.batch, fitted, without_effect)
    if groups.groups and not untested:
        acted = group_elements.prove(runs, groups, inputs, seed, allowed, each_word=each_word)
        largest, words = max(largest, *acted.values()), words | acted
    if untested:
        raise _untested(fitted, sorted(untested))
    words.pop(group_elements.ALL, None)
    precision, not_seen = str(dtype).removeprefix("torch."), tuple(n for n in without_effect if n in unread)
    outputs = runs.last.kept, runs.last.left_out
    decided_at = tuple(f"{Path(file).name}:{line}" for file, line in sorted(runs.places))
    return Proof(
        largest, words, done, allowed, precision, tuple(without_effect), not_seen, *outputs, torn, decided_at
    )


def _permuted(changed: Changed, fitted: FittedSpec, seed: int, trial: int, first: bool) -> float:
    """How much outputs differ at most: all words permuted together, and at first those apart that need it."""
    most = changed(draw(fitted, fitted.words, generator(seed, f"prove {trial}")))
    few = apart(fitted) if first else []
    each = (draw(fitted, some, generator(seed, "prove apart")) for some in few)
    return max([most, *map(changed, each)])


def _refused(
    fitted: FittedSpec,
    words: dict[str, float],
    largest: float,
    allowed: float,
    outputs: Mapping[str, bool],
) -> NotProven:
    """`outputs`: whether each of them changes."""
    wrong = [word for word, size in words.items() if not size <= allowed]
    wrong.sort(key=words.__getitem__, reverse=True)
    changing = [name for name, changes in outputs.items() if changes]
    some = 0 < len(changing) < len(outputs)
    refused = NotProven(
        f"{fitted.spec.source} does not preserve the network's function: "
        f"outputs differ by {largest:.2g} relative, allowed is {allowed:.0e}",
        problems=[f'permuting "{word}" alone changes them by {words[word]:.2g}' for word in wrong]
        + ([f"of the outputs these change: {', '.join(changing[:SHOWN])}"] if some else []),
        hint="Nothing was written. See the axes with: rebasin spec show"
        + (
            f"; if {changing[0]} is no part of the network's function: --not-kept {changing[0]}"
            if some
            else ""
        ),
    )
    refused.words = tuple(wrong)
    return refused


def _untested(fitted: FittedSpec, tensors: Collection[str]) -> NotProven:
    more = [f"… {len(tensors) - SHOWN} more"] if len(tensors) > SHOWN else []
    refused = NotProven(
        f"{fitted.spec.source} is not proven: {len(tensors)} of the network's tensors could not be tested",
        problems=[
            f"{name}  has an effect on the outputs, but the order of its units shows in no trial"
            for name in list(tensors)[:SHOWN]
        ]
        + more,
        hint="Give inputs on which they count with --input or --data",
    )
    moved = {word for name in tensors for axis in fitted.tensors.get(name, ()) for word in words_of(axis)}
    refused.words, refused.untested = tuple(sorted(moved)), tuple(tensors)
    return refused


def _tolerance(rounding: float, dtype: torch.dtype) -> float:
    """What is allowed where so much was seen; what amplifies rounding beyond all measure proves nothing."""
    eps = torch.finfo(dtype).eps
    return MARGIN * min(max(rounding, eps), math.sqrt(eps) / MARGIN)
