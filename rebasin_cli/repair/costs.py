"""What a repair will take, before it is begun."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from ..errors import NetworkError
from ..runtime.devices import for_search
from .ensemble import MEMORY
from .options import epochs_of
from .refits import plan_refit

TRACING = 1.0  # seconds to trace a network whose channels are matched
PRODUCT = 512  # rows and columns of a product that is timed


def repair_passes(network: nn.Module) -> float:
    """How often matching channels reads its samples: L/2 times and twice, for L layers in a row."""
    weights = (getattr(module, "weight", None) for module in network.modules())
    layers = sum(isinstance(weight, torch.Tensor) and weight.ndim > 1 for weight in weights)
    return max(layers, 1) / 2 + 2


def distillation_passes(models: int, samples: int) -> int:
    """Forward passes that each sample of a distillation takes: a step is three, a target is one."""
    return 3 * epochs_of(samples) + models + 3  # what is missing before and after, and a reset


def distillation_bytes(network: nn.Module) -> int:
    """What it holds beside the models, in float32: the weights, their gradients, and two of Adam's."""
    return 16 * sum(parameter.numel() for parameter in network.parameters()) + MEMORY


def refit_products(network: nn.Module, inputs: Any, device: str, speed: float | None = None) -> float:
    """Seconds of a sample's products in float64 in a refit, by one timed product.

    Or by a `speed` of multiplications a second. `inputs` is a batch as the network takes it. 0 where the
    network is not traced.
    """
    try:
        products = plan_refit(network, inputs).products
    except NetworkError:
        return 0.0
    if speed is not None:
        return products / speed
    some = torch.ones(PRODUCT, PRODUCT, dtype=torch.float64, device=for_search(device))
    some @ some
    began = time.perf_counter()
    (some @ some).sum().item()
    return products * (time.perf_counter() - began) / PRODUCT**3
