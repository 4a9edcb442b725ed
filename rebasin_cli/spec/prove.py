"""A spec is believed only after it is proven: permute at random, and compare what the network computes.

Weights, norm statistics and affine parameters are drawn at random, so that neither zeros (a
zero-initialised head) nor ones (a fresh norm) hide a mistake. Everything runs in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import permutation
from ..errors import NetworkError, NotProven
from ..evaluation import evaluating, forward
from ..randomness import generator
from .spec import FittedSpec

TOLERANCE = 1e-8


@dataclass(frozen=True)
class Proof:
    """`largest_difference`: of any output, relative to the largest output, over `trials` draws.

    `words` says how large it was when that word alone was permuted.
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
    seed: int = 0,
    trials: int = 2,
    each_word: bool = False,
    tolerance: float = TOLERANCE,
) -> Proof:
    """Show that permuting by the spec leaves the network's outputs as they are.

    `inputs` is one batch, as the network takes it (tensor, tuple or dict). All words are permuted
    together in each trial; `each_word` also permutes one word at a time, to name the culprit. Works on a
    float64 copy of the network: memory is that copy, its activations and the largest tensor.

    Raises NotProven, and NetworkError where the network fails or its outputs say nothing.
    """
    network = copy.deepcopy(network).to("cpu", torch.float64)
    inputs = _double(inputs)
    largest, words = 0.0, {}
    with evaluating(network), torch.no_grad():
        for trial in range(trials):
            _randomise(network, fitted, generator(seed, f"prove weights {trial}"))
            before = _run(network, inputs)
            _check_outputs(before)
            if each_word and trial == 0:
                for word in sorted(fitted.words):
                    perm = permutation.random({word: fitted.words[word]}, generator(seed, f"prove {word}"))
                    one = permutation.identity(fitted.words) | perm
                    _permute(network, fitted, one)
                    words[word] = _difference(before, _run(network, inputs))
                    _permute(network, fitted, permutation.invert(one))
            _permute(network, fitted, permutation.random(fitted.words, generator(seed, f"prove {trial}")))
            largest = max(largest, _difference(before, _run(network, inputs)), *words.values())
    if not largest <= tolerance:
        if not each_word:  # look again, to say which words are wrong
            return prove(network, fitted, inputs, seed=seed, trials=1, each_word=True, tolerance=tolerance)
        wrong = sorted(
            (word for word, size in words.items() if not size <= tolerance), key=words.get, reverse=True
        )
        raise NotProven(
            f"{fitted.spec.source} does not preserve the network's function: "
            f"outputs differ by {largest:.2g} relative, allowed is {tolerance:.0e}",
            problems=[f'permuting "{word}" alone changes them by {words[word]:.2g}' for word in wrong],
            hint="Nothing was written. See the axes with: rebasin spec show",
        )
    return Proof(largest, words, trials, tolerance)


def _randomise(network: nn.Module, fitted: FittedSpec, rng: torch.Generator) -> None:
    for name, tensor in _own(network):
        if not tensor.is_floating_point():
            continue
        if tensor.ndim <= 1:  # biases, norms: positive, so that units stay alive and variances are ones
            tensor.copy_(torch.rand(tensor.shape, generator=rng, dtype=torch.float64) + 0.5)
        else:
            fan_in = math.prod(tensor.shape[1:])
            tensor.copy_(
                torch.randn(tensor.shape, generator=rng, dtype=torch.float64) * math.sqrt(2 / fan_in)
            )


def _permute(network: nn.Module, fitted: FittedSpec, permutations: permutation.Permutations) -> None:
    for name, tensor in _own(network):
        if name in fitted.tensors:
            tensor.copy_(permutation.permute(tensor, fitted.tensors[name], permutations))


def _own(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor once, also where two names share it."""
    seen = set()
    for name, tensor in network.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and key not in seen:
            seen.add(key)
            yield name, tensor


def _run(network: nn.Module, inputs: Any) -> list[torch.Tensor]:
    return [tensor.double().clone() for tensor in _tensors(forward(network, inputs))]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("cpu", torch.float64) if value.is_floating_point() else value.cpu()
    if isinstance(value, Mapping):
        return {key: _double(part) for key, part in value.items()}
    return type(value)(_double(part) for part in value) if isinstance(value, (tuple, list)) else value


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


def _difference(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    """Largest absolute difference relative to the largest value of the same output; NaN counts as inf."""
    worst = 0.0
    for x, y in zip(before, after, strict=True):
        value = ((x - y).abs().max() / x.abs().max().clamp_min(1e-300)).item()
        worst = max(worst, math.inf if math.isnan(value) else value)
    return worst
