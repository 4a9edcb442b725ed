"""A spec is believed only after it is proven: permute at random, and compare what the network computes.

Weights, norm statistics and affine parameters are drawn at random, so that neither zeros (a
zero-initialised head) nor ones (a fresh norm) hide a mistake. The first trial takes the inputs that are
given, the others draw theirs anew. Everything runs in float64, also
what a network itself would compute in less.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import networks
from ..datasets._batches import map_tensors, tensors_in
from ..errors import NetworkError, NotProven
from ..networks.running import evaluating, fed, forward, pick
from ..permutations import permutation
from ..runtime.seeds import generator
from ..spec.spec import FittedSpec
from .float64 import in_float64

TOLERANCE = 1e-8


@dataclass(frozen=True)
class Proof:
    """`largest_difference`: of any output, relative to the largest output, over `trials` draws.

    `words` says how large it was when that word alone was permuted (with the blocks of starred words that
    lie within it; of a starred word within its blocks alone).
    """

    largest_difference: float
    words: dict[str, float]
    trials: int
    tolerance: float = TOLERANCE


def prove(
    network: nn.Module,
    fitted: FittedSpec,
    inputs: Any,
    *,
    output: str | int | None = None,
    seed: int = 0,
    trials: int = 2,
    each_word: bool = False,
    tolerance: float = TOLERANCE,
) -> Proof:
    """Show that permuting by the spec leaves the network's outputs as they are.

    `inputs` is one batch, as the network takes it (tensor, tuple or dict); after the first trial another of
    its kind is drawn. All words are permuted together in each trial; `each_word` also permutes one word at
    a time, to name the culprit. `output` picks one of several outputs by key or index: the others may change.
    Works on a float64 copy of the network: memory is that copy, its
    activations and the largest tensor.

    Raises NotProven, and NetworkError where the network has other tensors than the spec was fitted to,
    fails, or its outputs say nothing.
    """
    networks.check(network, fitted.shapes)  # else nothing might be permuted, and all look well
    network = copy.deepcopy(network).to("cpu", torch.float64)
    inputs = fed(network, inputs, "cpu", quiet=True)
    largest, words = 0.0, {}
    with evaluating(network), torch.no_grad():
        for trial in range(trials):
            _randomise(network, generator(seed, f"prove weights {trial}"))
            batch, before = _answers(network, inputs, output, seed, trial)

            def changed(
                permutations: permutation.Permutations,
                batch: Any = batch,
                before: list[torch.Tensor] = before,
            ) -> float:
                _permute(network, fitted, permutations)
                difference = _difference(before, _run(network, batch, output))
                _permute(network, fitted, permutation.invert(permutations))
                return difference

            largest = max(largest, changed(_draw(fitted, fitted.words, generator(seed, f"prove {trial}"))))
            if each_word or not largest <= tolerance:  # which words are wrong?
                for word in sorted(fitted.words):
                    one = changed(_draw(fitted, [word], generator(seed, f"prove {word} {trial}")))
                    words[word] = max(one, words.get(word, 0.0))
                largest = max(largest, *words.values(), 0.0)
            if not largest <= tolerance:
                break
    if not largest <= tolerance:
        wrong = sorted(
            (word for word, size in words.items() if not size <= tolerance), key=words.get, reverse=True
        )
        refused = NotProven(
            f"{fitted.spec.source} does not preserve the network's function: "
            f"outputs differ by {largest:.2g} relative, allowed is {tolerance:.0e}",
            problems=[f'permuting "{word}" alone changes them by {words[word]:.2g}' for word in wrong],
            hint="Nothing was written. See the axes with: rebasin spec show",
        )
        refused.words = tuple(wrong)
        raise refused
    return Proof(largest, words, trials, tolerance)


def _answers(
    network: nn.Module, inputs: Any, output: str | int | None, seed: int, trial: int
) -> tuple[Any, list[torch.Tensor]]:
    """The batch of a trial, and the network's outputs."""
    if trial > 0:
        try:
            drawn = _redrawn(inputs, generator(seed, f"prove inputs {trial}"))
            outputs = _run(network, drawn, output)
            _check_outputs(outputs)
            return drawn, outputs
        except NetworkError:
            pass  # it takes less than all numbers: what is given must do
    outputs = _run(network, inputs, output)
    _check_outputs(outputs)
    return inputs, outputs


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


def _randomise(network: nn.Module, rng: torch.Generator) -> None:
    for tensor in network.state_dict().values():
        if not tensor.is_floating_point():
            continue
        if tensor.ndim <= 1:  # biases, norms: positive, so that units stay alive and variances are ones
            tensor.copy_(torch.rand(tensor.shape, generator=rng, dtype=torch.float64) + 0.5)
        else:
            fan_in = max(1, math.prod(tensor.shape[1:]))  # a layer may have no units
            tensor.copy_(
                torch.randn(tensor.shape, generator=rng, dtype=torch.float64) * math.sqrt(2 / fan_in)
            )


def _permute(network: nn.Module, fitted: FittedSpec, permutations: permutation.Permutations) -> None:
    for names in _shared(network):
        tied = len(names) > 1
        axes = {name: fitted.tensors.get(name, ()) for name, _ in names}
        moved = [
            permutation.permute(tensor.clone() if tied else tensor, axes[name], permutations, fitted.within)
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


def _run(network: nn.Module, inputs: Any, output: str | int | None) -> list[torch.Tensor]:
    with in_float64():
        return [tensor.double().clone() for tensor in tensors_in(pick(forward(network, inputs), output))]


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
