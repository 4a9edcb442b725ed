"""A spec is believed only after it is proven: permute at random, and compare what the network computes.

Weights, norm statistics and affine parameters are drawn at random, so that neither zeros (a
zero-initialised head) nor ones (a fresh norm) hide a mistake, and of a size at which no nonlinearity
saturates (`drawing`). A proof says something of a tensor only where the outputs would tell if its units were
in another order; that is looked at, too (`seeing`). The first trial takes the inputs that are given, the
others draw theirs anew, smaller where the network takes those. Everything runs in float64, also what a
network itself would compute in less; where an operation knows no float64, in float32.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import networks
from ..errors import NetworkError, NotProven, UsageError
from ..networks.running import fed
from ..networks.state import fresh, own_state
from ..runtime.seeds import generator
from ..spec.notation import words_of
from ..spec.spec import FittedSpec
from . import acting, drawing, seeing, stale
from .shuffling import Changed, apart, draw
from .trials import Fails, Runs, answers, difference, nudged

MARGIN = 1000  # how much larger than rounding a difference has to be
MORE = 4  # trials for tensors whose effect the others could not see, such as those of units that were dead
SHOWN = 10  # tensors that a refusal names


@dataclass(frozen=True)
class Proof:
    """`largest_difference`: of any output, relative to the largest output, over `trials` draws.

    `tolerance` is what it was held against: `MARGIN` times the least rounding that there is, and times the
    rounding that is measured only where outputs differ by more. `words` says how
    large it was when that word alone was permuted (with the blocks of starred words that lie within it; of a
    starred word within its blocks alone). `without_effect`: tensors that the compared outputs do not depend
    on in any way, whatever their values, so that no order of theirs can be wrong.
    """

    largest_difference: float
    words: dict[str, float]
    trials: int
    tolerance: float
    precision: str = "float64"
    without_effect: tuple[str, ...] = ()


def prove(
    network: nn.Module,
    fitted: FittedSpec,
    inputs: Any,
    *,
    output: str | int | None = None,
    seed: int = 0,
    trials: int = 2,
    each_word: bool = False,
    tolerance: float | None = None,
) -> Proof:
    """Show that permuting by the spec leaves the network's outputs as they are.

    `inputs` is one batch, as the network takes it (tensor, tuple or dict); after the first trial another of
    its kind is drawn. All words are permuted together in each trial; `each_word` also permutes one word at
    a time, to name the culprit. `output` picks one of several outputs by key or index: the others may change.
    Without a `tolerance`, it is a multiple of rounding. The network computes on
    a float64 copy of its tensors and is as it was afterwards: memory is those, their gradients, its
    activations and the largest tensor.

    Raises NotProven, also where a tensor has an effect that no trial could see; and NetworkError where the
    network has other tensors than the spec was fitted to, fails, or its outputs say nothing; UsageError for
    fewer than one of `trials`.
    """
    if trials < 1:
        raise UsageError(f"{trials} trials prove nothing", hint="Leave out trials, or give 1 or more")
    networks.check(network, fitted.shapes)  # else nothing might be permuted, and all look well
    network = networks.on(network, "cpu")
    asked = {"output": output, "seed": seed, "trials": trials, "each_word": each_word, "tolerance": tolerance}
    try:
        return _proven(network, fitted, inputs, torch.float64, **asked)
    except Fails as cause:
        with contextlib.suppress(Fails):
            return _proven(network, fitted, inputs, torch.float32, **asked)
        raise NetworkError(cause.message, problems=cause.problems, hint=cause.hint) from cause


def _proven(
    network: nn.Module,
    fitted: FittedSpec,
    inputs: Any,
    dtype: torch.dtype,
    *,
    output: str | int | None,
    seed: int,
    trials: int,
    each_word: bool,
    tolerance: float | None,
) -> Proof:
    allowed, measured = (MARGIN * torch.finfo(dtype).eps, False) if tolerance is None else (tolerance, True)
    groups, fitted = fitted, fitted.ordered
    largest, words = 0.0, {}
    untested: set[str] | None = None  # at first all
    without_effect: list[str] = []
    done = 0
    with fresh(network, inputs) as refresh, own_state(network, dtype), torch.no_grad():
        runs = Runs(network, refresh, dtype, output)
        inputs = fed(network, inputs, "cpu", quiet=True)
        while done < trials or (untested and done < trials + MORE):
            # looked at closely is the last of them, whose inputs may be smaller, and then what that left open
            trial = trials - 1 - done if done < trials else done
            drawing.draw(network, generator(seed, f"prove weights {trial}"))
            close = done == 0 or done >= trials
            batch, before, effects = answers(runs, inputs, seed, trial, close)
            changed = Changed(runs, fitted, batch, before)
            most = changed(draw(fitted, fitted.words, generator(seed, f"prove {trial}")))
            if done == 0:
                each = (draw(fitted, some, generator(seed, "prove apart")) for some in apart(fitted))
                most = max(most, *map(changed, each), 0.0)
            if not (measured or most <= allowed):  # it may be rounding
                changed.undo()
                rounding = difference(before, runs.outputs(nudged(batch)))
                allowed, measured = _tolerance(rounding, dtype), True
                if done and most <= allowed:  # what was seen with less allowed may be hidden now
                    largest, untested, without_effect, done = 0.0, None, [], 0
                    continue
            largest = max(largest, most)
            if each_word or not largest <= allowed:  # which words are wrong?
                for word in sorted(fitted.words):
                    one = changed(draw(fitted, [word], generator(seed, f"prove {word} {trial}")))
                    words[word] = max(one, words.get(word, 0.0))
                largest = max(largest, *words.values(), 0.0)
            if not largest <= allowed:
                raise _refused(fitted, words, largest, allowed)
            if close:
                least = seeing.CLEAR * min(allowed, math.sqrt(torch.finfo(dtype).eps))
                open_ = effects.keys() if untested is None else untested
                hidden = [name for name, effect in effects.items() if name in open_ and not effect > least]
                if hidden:
                    changed.undo()
                seen = seeing.look(network, changed.difference, hidden, least, generator(seed, "unseen"))
                untested = set(seen.untested)
                without_effect += seen.without_effect
            changed.undo(drawn=False)
            done += 1
        stale.check(runs, inputs, fitted, without_effect)
        if groups.groups and not untested:
            acted = acting.prove(runs, groups, inputs, seed, allowed, each_word=each_word)
            largest, words = max(largest, *acted.values()), words | acted
    if untested:
        raise _untested(fitted, sorted(untested))
    words.pop(acting.ALL, None)
    return Proof(largest, words, done, allowed, str(dtype).removeprefix("torch."), tuple(without_effect))


def _refused(fitted: FittedSpec, words: dict[str, float], largest: float, allowed: float) -> NotProven:
    wrong = [word for word, size in words.items() if not size <= allowed]
    wrong.sort(key=words.get, reverse=True)
    refused = NotProven(
        f"{fitted.spec.source} does not preserve the network's function: "
        f"outputs differ by {largest:.2g} relative, allowed is {allowed:.0e}",
        problems=[f'permuting "{word}" alone changes them by {words[word]:.2g}' for word in wrong],
        hint="Nothing was written. See the axes with: rebasin spec show",
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
    refused.words = tuple(sorted(moved))
    return refused


def _tolerance(rounding: float, dtype: torch.dtype) -> float:
    """What is allowed where so much was seen; what amplifies rounding beyond all measure proves nothing."""
    eps = torch.finfo(dtype).eps
    return MARGIN * min(max(rounding, eps), math.sqrt(eps) / MARGIN)
