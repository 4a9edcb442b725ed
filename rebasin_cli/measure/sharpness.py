"""How sharp a minimum is, whatever the scale of its weights: tr(H ⊙ θθᵀ) = Σ_i H_ii θ_i².

H is the Hessian of the mean loss by all parameters θ. A unit's incoming weights times c and its outgoing ones
divided by c leave the function as it is, and this figure too, where tr(H) alone changes. It is estimated
with probes of random signs z: E[(z⊙θ)ᵀ H (z⊙θ)] = Σ_i H_ii θ_i², one Hessian-vector product each.

Ito, Yamada, Kumagai 2025 (STE-MM), equation 6; the estimator is Hutchinson's, 1990.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import nn

from ..datasets.batches import checked, size_of, to_device
from ..errors import NetworkError, UsageError
from ..networks.forward import evaluating, fed, returned
from ..networks.losses import Loss
from ..runtime import devices
from ..runtime.seeds import generator
from ..types import Batches


@dataclass(frozen=True)
class Sharpness:
    """The mean over `probes`, and its standard error: of the probes alone, not of the `samples`."""

    value: float
    error: float
    probes: int
    samples: int


def sharpness(
    network: nn.Module,
    batches: Batches,
    *,
    probes: int = 10,
    seed: int = 0,
    loss: Callable[[Any, Any], Any] | None = None,
    output: str | int | None = None,
    device: str | torch.device = "cpu",
) -> Sharpness:
    """tr(H ⊙ θθᵀ) of `network`, already on `device`, at the mean loss over all samples of `batches`.

    `loss(outputs, targets)` is a batch's mean (default: cross-entropy). Norms use their running statistics.
    Each probe is the same on all batches, so that sums over batches are those of the whole data. Raises
    UsageError for fewer than two probes, DataError for data without samples, NetworkError for a network or
    loss that cannot be derived twice.
    """
    if probes < 2:
        raise UsageError(f"{probes} probes have no standard error", hint="Take two or more, such as 10")
    parameters = [p for p in network.parameters() if p.is_floating_point()]
    rng = generator(seed, "sharpness probes")
    signs = [
        [torch.randint(0, 2, p.shape, generator=rng).mul_(2).sub_(1).to(p) for p in parameters]
        for _ in range(probes)
    ]
    lost, totals, samples = Loss.of(loss), [0.0] * probes, 0
    asked = [p.requires_grad for p in parameters]
    try:
        for p in parameters:
            p.requires_grad_(True)
        with evaluating(network), torch.enable_grad():
            for number, (inputs, targets) in enumerate(checked(batches)):
                size = size_of(targets, inputs)
                targets = to_device(targets, device)
                given = fed(network, inputs, device)
                mean = lost(returned(network, given, output=output), targets, number)
                for k, value in enumerate(_products(mean, parameters, signs)):
                    totals[k] += size * value
                samples += size
    finally:
        for p, before in zip(parameters, asked, strict=True):
            p.requires_grad_(before)
    found = [total / samples for total in totals]
    known = all(map(math.isfinite, found))
    error = statistics.stdev(found) / math.sqrt(probes) if known else math.nan
    return Sharpness(statistics.fmean(found), error, probes, samples)


def _products(
    mean: torch.Tensor, parameters: list[nn.Parameter], signs: list[list[torch.Tensor]]
) -> Iterable[float]:
    """(z⊙θ)ᵀ H (z⊙θ) of one batch for every z."""
    try:
        slopes = torch.autograd.grad(mean, parameters, create_graph=True, materialize_grads=True)
        for k, z in enumerate(signs):
            probe = [sign * p.detach() for sign, p in zip(z, parameters, strict=True)]
            products = ((slope * v).sum() for slope, v in zip(slopes, probe, strict=True))
            along = reduce(torch.add, products)
            if not along.requires_grad:  # linear in every parameter
                yield 0.0
                continue
            curved = torch.autograd.grad(
                along, parameters, retain_graph=k + 1 < len(signs), materialize_grads=True
            )
            wide = torch.float64 if devices.has_float64(along.device) else torch.float32
            yield sum((c * v).sum(dtype=wide).item() for c, v in zip(curved, probe, strict=True))
    except (NotImplementedError, RuntimeError) as cause:
        if isinstance(cause, torch.OutOfMemoryError) or "can't allocate memory" in str(cause):
            raise
        raise NetworkError(
            f"the loss cannot be derived twice: {str(cause).partition(chr(10))[0]}",
            hint="Sharpness needs second derivatives of everything that the network computes",
        ) from cause
