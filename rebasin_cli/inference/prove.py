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
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import networks
from ..datasets._batches import map_tensors, tensors_in
from ..errors import NetworkError, NotProven
from ..networks.running import fed, forward, pick
from ..networks.state import fresh, own_state
from ..permutations import permutation
from ..runtime.seeds import generator
from ..spec.notation import words_of
from ..spec.spec import FittedSpec
from . import acting, drawing, seeing
from .float64 import in_float64

MARGIN = 1000  # how much larger than rounding a difference has to be
SIDE = 64  # pixels that drawn inputs have at most, where the network takes so few
MORE = 4  # trials for tensors whose effect the others could not see, such as those of units that were dead
SHOWN = 10  # tensors that a refusal names
FEW = 5  # units: of more, two words are drawn alike once in 700 times at most


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
    network has other tensors than the spec was fitted to, fails, or its outputs say nothing.
    """
    networks.check(network, fitted.shapes)  # else nothing might be permuted, and all look well
    network = networks.on(network, "cpu")
    asked = {"output": output, "seed": seed, "trials": trials, "each_word": each_word, "tolerance": tolerance}
    try:
        return _proven(network, fitted, inputs, torch.float64, **asked)
    except Fails as cause:
        with contextlib.suppress(Fails):
            return _proven(network, fitted, inputs, torch.float32, **asked)
        raise NetworkError(cause.message, problems=cause.problems, hint=cause.hint) from cause


class Fails(NetworkError):
    """The network does not run in this precision on the inputs that are given."""


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
    largest, words = 0.0, {}
    untested: set[str] | None = None  # at first all
    without_effect: list[str] = []
    done = 0
    with fresh(network) as refresh, own_state(network, dtype), torch.no_grad():
        runs = Runs(network, refresh, dtype, output)
        inputs = fed(network, inputs, "cpu", quiet=True)
        while done < trials or (untested and done < trials + MORE):
            # looked at closely is the last of them, whose inputs may be smaller, and then what that left open
            trial = trials - 1 - done if done < trials else done
            drawing.draw(network, generator(seed, f"prove weights {trial}"))
            close = done == 0 or done >= trials
            batch, before, effects = _answers(runs, inputs, seed, trial, close)
            changed = _Changed(runs, fitted, batch, before)
            most = changed(_draw(fitted, fitted.words, generator(seed, f"prove {trial}")))
            if done == 0:
                each = (_draw(fitted, some, generator(seed, "prove apart")) for some in _apart(fitted))
                most = max(most, *map(changed, each), 0.0)
            if not (measured or most <= allowed):  # it may be rounding
                changed.undo()
                rounding = _difference(before, runs.outputs(_nudged(batch)))
                allowed, measured = _tolerance(rounding, dtype), True
                if done and most <= allowed:  # what was seen with less allowed may be hidden now
                    largest, untested, without_effect, done = 0.0, None, [], 0
                    continue
            largest = max(largest, most)
            if each_word or not largest <= allowed:  # which words are wrong?
                for word in sorted(fitted.words):
                    one = changed(_draw(fitted, [word], generator(seed, f"prove {word} {trial}")))
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
        if fitted.groups and not untested:
            acted = acting.prove(runs, fitted, inputs, seed, allowed, _difference, each_word=each_word)
            largest, words = max(largest, *acted.values()), words | acted
    if untested:
        raise _untested(fitted, sorted(untested))
    words.pop(acting.ALL, None)
    return Proof(largest, words, done, allowed, str(dtype).removeprefix("torch."), tuple(without_effect))


class Runs:
    """The network on batches, each time as if for the first time."""

    def __init__(
        self, network: nn.Module, refresh: Callable[[], None], dtype: torch.dtype, output: str | int | None
    ) -> None:
        self.network, self._refresh, self._dtype, self._output = network, refresh, dtype, output

    def outputs(self, inputs: Any, *, scale: bool = False) -> list[torch.Tensor]:
        """Every tensor among the outputs, in this precision; `scale`: after weights were scaled to size.

        Raises Fails where the network does.
        """
        with torch.no_grad():
            kept = [(buffer, buffer._version, buffer.clone()) for buffer in self.network.buffers()]
        self._refresh()
        try:
            with contextlib.ExitStack() as modes:
                if scale:
                    modes.enter_context(drawing.Scaling(self.network))
                if self._dtype is torch.float64:
                    modes.enter_context(in_float64())
                found = forward(self.network, inputs)
        except NetworkError as cause:
            raise Fails(cause.message, problems=cause.problems, hint=cause.hint) from cause
        finally:
            for buffer, version, values in kept:
                if buffer._version != version:  # the network wrote into it
                    buffer.detach().copy_(values)
        return [self._real(tensor) for tensor in tensors_in(pick(found, self._output))]

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        return whole.to(self._dtype).clone()


class _Changed:
    """How much outputs differ after permuting; what it did is undone before the next time."""

    def __init__(self, runs: Runs, fitted: FittedSpec, batch: Any, before: list[torch.Tensor]) -> None:
        self._runs, self._fitted, self._batch, self._before = runs, fitted, batch, before
        self._done: permutation.Permutations | None = None

    def __call__(self, permutations: permutation.Permutations) -> float:
        back = self._done and permutation.invert(self._done)
        _permute(
            self._runs.network,
            self._fitted,
            permutation.compose(back, permutations) if back else permutations,
        )
        self._done = permutations
        return self.difference()

    def difference(self) -> float:
        return _difference(self._before, self._runs.outputs(self._batch))

    def undo(self, *, drawn: bool = True) -> None:
        """Everything as it was; without `drawn` only tensors that the next trial does not draw anew."""
        if self._done is not None:
            _permute(self._runs.network, self._fitted, permutation.invert(self._done), drawn=drawn)
        self._done = None


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


def _nudged(inputs: Any) -> Any:
    """The next numbers: what rounding alone may change."""

    def nudge(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        after = torch.nextafter(tensor, torch.full_like(tensor, math.inf))
        return torch.where(tensor.isfinite() & (tensor != 0), after, tensor)  # a mask of infinities stays one

    return map_tensors(nudge, inputs)


def _answers(
    runs: Runs, inputs: Any, seed: int, trial: int, close: bool
) -> tuple[Any, list[torch.Tensor], dict[str, float]]:
    """The batch of a trial, the network's outputs, and how much they depend on each tensor."""
    for batch in _batches(inputs, seed, trial):
        with contextlib.suppress(NetworkError):  # it takes less than all numbers: what is given must do
            return batch, *_answered(runs, batch, close)
    return inputs, *_answered(runs, inputs, close)


def _answered(runs: Runs, batch: Any, close: bool) -> tuple[list[torch.Tensor], dict[str, float]]:
    if close:
        outputs, effects = seeing.outputs_and_effects(runs, batch)
    else:
        outputs, effects = runs.outputs(batch, scale=True), {}
    _check_outputs(outputs)
    return outputs, effects


def _batches(inputs: Any, seed: int, trial: int) -> Iterator[Any]:
    """Other batches of the same kind, the smaller first."""
    if trial == 0:
        return
    drawn = _redrawn(inputs, generator(seed, f"prove inputs {trial}"))
    sides = [min(tensor.shape[-2:]) for tensor in tensors_in(drawn) if tensor.ndim == 4]
    if sides and min(sides) > SIDE:
        yield map_tensors(lambda tensor: tensor[..., :SIDE, :SIDE] if tensor.ndim == 4 else tensor, drawn)
    yield drawn


def _redrawn(inputs: Any, rng: torch.Generator) -> Any:
    """Another batch of the same kind: noise as large as the input, integers in another order."""

    def redraw(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() and tensor.numel():
            spread = tensor.std(correction=0)
            if not torch.isfinite(spread):
                return tensor  # a mask of infinities
            return tensor.mean() + spread * torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
        if tensor.dtype == torch.bool:
            return tensor
        return tensor.flatten()[torch.randperm(tensor.numel(), generator=rng)].view(tensor.shape)

    return map_tensors(redraw, inputs)


def _draw(fitted: FittedSpec, words: Collection[str], rng: torch.Generator) -> permutation.Permutations:
    """Random permutations of these words, the others stay as far as they can.

    None is the identity: of two units it would be drawn every other time. For the same reason no starred
    word has one order in all its blocks.
    """
    within = fitted.within
    drawn = permutation.random({word: fitted.words[word] for word in words}, rng, within=within)
    for word, perm in drawn.items():
        if word not in within:
            drawn[word] = perm.roll(1) if permutation.is_identity({word: perm}) else perm
            continue
        blocks, inner = permutation.split(perm, within[word])
        alike = torch.equal(inner, inner[:1].expand_as(inner))
        if alike and (len(inner) > 1 or permutation.is_identity({word: perm})):
            inner[0] = inner[0].roll(1)
            drawn[word] = permutation.join(blocks, inner)
    return permutation.carried(permutation.identity(fitted.words) | drawn, within)


def _apart(fitted: FittedSpec) -> list[list[str]]:
    """Words of few units, so that of any two there is a set which has one and not the other.

    What is drawn for them is too often the same: two words of two units are both swapped every time.
    """
    few = sorted(word for word, size in fitted.words.items() if size <= FEW and word not in fitted.within)
    bits = range(len(few).bit_length() if len(few) > 1 else 0)
    return [[word for number, word in enumerate(few, start=1) if number >> bit & 1] for bit in bits]


def _permute(
    network: nn.Module,
    fitted: FittedSpec,
    permutations: permutation.Permutations,
    *,
    drawn: bool = True,
) -> None:
    groups = [names for names in _shared(network) if drawn or not drawing.draws(names[0][1])]
    largest = max((tensor.nbytes for names in groups for _, tensor in names), default=0)
    room = torch.empty(largest, dtype=torch.uint8)
    for names in groups:
        axes = {name: fitted.tensors.get(name, ()) for name, _ in names}
        if len(names) == 1:
            (name, tensor) = names[0]
            own = room[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            value = permutation.permute(tensor, axes[name], permutations, fitted.within, room=own)
            if value is not tensor:
                tensor.copy_(value)
            continue
        moved = [
            permutation.permute(tensor.clone(), axes[name], permutations, fitted.within)
            for name, tensor in names
        ]
        for (_, tensor), value in zip(names, moved, strict=True):
            tensor.copy_(value)
        if not all(torch.equal(tensor, value) for (_, tensor), value in zip(names, moved, strict=True)):
            raise NotProven(
                f"{fitted.spec.source} would tear tied tensors apart",
                problems=[f'{name}  is "{" ".join(map(str, axes[name]))}"' for name in axes],
                hint="They share their values, so give them the same words",
            )


def _shared(network: nn.Module) -> list[list[tuple[str, torch.Tensor]]]:
    """Every tensor with its name, those that share memory together: tied ones are moved once."""
    groups: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in network.state_dict().items():
        if tensor.numel():
            groups.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    return list(groups.values())


def _check_outputs(outputs: list[torch.Tensor]) -> None:
    if not outputs:
        raise NetworkError("the network returns no tensor, so the spec cannot be proven")
    for tensor in outputs:
        if not torch.isfinite(tensor).all():
            raise NetworkError(
                "the network returns NaN or infinite values on random weights: no proof possible"
            )
    if not any(tensor.numel() > 1 and tensor.min() < tensor.max() for tensor in outputs):
        raise NetworkError(
            "the network's outputs are all equal on random weights, so a proof would say nothing"
        )
    batched = [tensor for tensor in outputs if tensor.ndim > 1 and len(tensor) > 1]
    if batched and all(torch.equal(tensor, tensor[:1].expand_as(tensor)) for tensor in batched):
        raise NetworkError("the network answers every input alike on random weights: its units are dead")


def _difference(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    """Largest absolute difference relative to the largest value of the same output; NaN counts as inf."""
    worst = 0.0
    for x, y in zip(before, after, strict=True):
        value = ((x - y).abs().max() / x.abs().max().clamp_min(1e-300)).item()
        worst = max(worst, math.inf if math.isnan(value) else value)
    return worst
