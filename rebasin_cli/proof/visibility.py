"""What a proof can see: whether the outputs would tell if a tensor's entries were in another order.

One gradient says it of all tensors at once. Where it is as small as rounding, the tensor is looked at by
itself: with its entries in another order, and with other and much larger ones. What changes nothing even
then has no effect (a key's bias, which a softmax does not see); what has one that does not show is not
tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import NetworkError
from ..registry import user_code
from .distance import own_sizes
from .random_weights import tensors_of
from .runs import Runs

CLEAR = 10  # a difference that is seen is so much larger than what is allowed
NOTHING = 1e-9  # relative: what much larger values may change where they have no effect
LARGE = 30
PART = 1 << 16  # entries
# They have no gradient, but about as much effect as these:
STATISTICS = {"running_mean": "bias", "running_var": "weight"}


@dataclass(frozen=True)
class Seen:
    """Tensors without any effect on the outputs, and those whose effect no trial could see."""

    without_effect: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()


def outputs_and_effects(
    runs: Runs, batch: Any
) -> tuple[list[torch.Tensor], dict[str, float], frozenset[str]]:
    """The outputs; for each tensor how much they would change, relatively, by another order: about.

    Last, the tensors that they are not computed from, as far as gradients tell.
    """
    every = {name: tensor for name, tensor in tensors_of(runs.network) if tensor.numel() > 1}
    nothing = dict.fromkeys(every, 0.0)
    tensors = {name: tensor for name, tensor in every.items() if not name.endswith(tuple(STATISTICS))}
    learned = [(tensor, tensor.requires_grad) for tensor in tensors.values()]
    try:
        for tensor, _ in learned:
            tensor.requires_grad_(True)
        with torch.enable_grad():
            outputs = runs.outputs(batch, scale=True)
            if not any(tensor.requires_grad for tensor in outputs):
                return [tensor.detach() for tensor in outputs], nothing, frozenset()
            found = _effects(outputs, tensors)
        effects = nothing | {name: effect or 0.0 for name, effect in found.items()}
        unread = {name for name, effect in found.items() if effect is None}
        for name in every.keys() - tensors.keys():
            module, _, statistic = name.rpartition(".")
            beside = f"{module}.{STATISTICS[statistic]}".removeprefix(".")
            effects[name] = effects.get(beside, 0.0)
            unread |= {name} if beside in unread else set()
        return [tensor.detach() for tensor in outputs], effects, frozenset(unread)
    except NetworkError:  # no gradient goes through it
        with torch.no_grad():
            return runs.outputs(batch, scale=True), nothing, frozenset()
    finally:
        for tensor, learns in learned:
            tensor.requires_grad_(learns)


def _effects(outputs: Sequence[torch.Tensor], tensors: dict[str, torch.Tensor]) -> dict[str, float | None]:
    """None: the outputs are not computed from it."""
    rng = torch.Generator().manual_seed(0)
    told = []
    for tensor, size in zip(outputs, own_sizes([tensor.detach() for tensor in outputs]), strict=True):
        if tensor.requires_grad and tensor.numel():
            weights = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
            finite = torch.where(tensor.isfinite(), tensor, 0.0)  # of masked logits
            told.append((finite * weights / size).sum())
    with user_code("no gradient goes through it"):
        gradients = torch.autograd.grad(torch.stack(told).sum(), list(tensors.values()), allow_unused=True)
    with torch.no_grad():
        return {
            name: None if gradient is None else _size(tensor, gradient)
            for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True)
        }


def _size(tensor: torch.Tensor, gradient: torch.Tensor) -> float:
    """The norm of gradient times distance from the mean, entry by entry; in parts that a cache holds."""
    mean = tensor.mean()
    parts = zip(tensor.reshape(-1).split(PART), gradient.reshape(-1).split(PART), strict=True)
    return math.sqrt(sum(_square((values - mean).mul_(slopes)) for values, slopes in parts))


def _square(values: torch.Tensor) -> float:
    flat = torch.view_as_real(values).flatten() if values.is_complex() else values
    return torch.dot(flat, flat).item()


def look(
    network: nn.Module,
    difference: Callable[[], float],
    hidden: Sequence[str],
    least: float,
    rng: torch.Generator,
    size: float = 0.0,
) -> Seen:
    """Look at tensors of which the gradient tells nothing; `difference` runs the network.

    One above `least` is seen. Much larger values are larger than those that there are, and than `size`.
    """
    own = dict(tensors_of(network))
    if not hidden:
        return Seen()
    if _with({name: _other(own[name], rng, size) for name in hidden}, own, difference) <= NOTHING:
        return Seen(tuple(hidden))
    nothing: list[str] = []
    untested: list[str] = []
    for name in hidden:
        tensor = own[name]
        if _with({name: tensor.flatten().roll(1).view(tensor.shape)}, own, difference) > least:
            continue
        changed = _with({name: _other(tensor, rng, size)}, own, difference)
        (nothing if changed <= NOTHING else untested).append(name)
    return Seen(tuple(nothing), tuple(untested))


def _with(
    values: dict[str, torch.Tensor], own: dict[str, torch.Tensor], difference: Callable[[], float]
) -> float:
    """The difference with these values, infinite where the network fails on them; its own come back."""
    kept = {name: own[name].detach().clone() for name in values}
    try:
        for name, other in values.items():
            own[name].detach().copy_(other)
        return difference()
    except NetworkError:
        return math.inf
    finally:
        for name, before in kept.items():
            own[name].detach().copy_(before)


def _other(tensor: torch.Tensor, rng: torch.Generator, size: float) -> torch.Tensor:
    """Much larger values, positive where all were."""
    size = LARGE * max(tensor.detach().abs().max().item(), size)
    return tensor + size * torch.rand(tensor.shape, generator=rng, dtype=torch.float64).to(tensor.dtype)
