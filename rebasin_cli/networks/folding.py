"""Norms with running statistics, folded into the convolutions before them while a network is measured.

In evaluation mode such a norm is a scale and a shift of each channel, which a convolution can do with its
own weights: its values are then written and read once less, up to a third of the time on a CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import NetworkError
from .forward import call
from .layout import FEW, Wrapper, alike, plain, removed

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
Pair = tuple[nn.Module, nn.Module]  # a convolution and the norm that reads it


@contextmanager
def folded(network: nn.Module, inputs: Any, output: str | int | None = None) -> Iterator[None]:
    """Meanwhile norms are part of the convolutions before them, where a few samples show that this is right.

    For networks in evaluation mode that compute in float32 on a CPU; outputs change by rounding alone.
    `inputs` are a batch as the network takes it. Which norm reads which convolution is watched; whether
    anything else reads it, too, shows in the outputs. Weights are used as they are at the beginning, and are
    untouched afterwards.
    """
    with _folding(_pairs(network, inputs, output)):
        yield


def _pairs(network: nn.Module, inputs: Any, output: str | int | None) -> list[Pair]:
    """What can be folded without another output for a few samples."""
    if not isinstance(inputs, Tensor) or inputs.device.type != "cpu" or inputs.dtype != torch.float32:
        return []
    if isinstance(network, Wrapper | torch.jit.ScriptModule) or inputs.ndim < 3 or not len(inputs):
        return []
    if not any(type(module) in NORMS for module in network.modules()):
        return []
    few = inputs[:FEW]
    with torch.no_grad():
        try:
            pairs, outputs = _watched(network, few, output)
            with _folding(pairs):
                return pairs if pairs and alike(outputs, call(network, few, output=output)) else []
        except NetworkError:  # told by whoever runs it
            return []


def _watched(network: nn.Module, few: Tensor, output: str | int | None) -> tuple[list[Pair], Tensor]:
    """Each norm that is fed what a convolution gave, both run once, and the network's outputs."""
    made: dict[int, tuple[nn.Module, Tensor]] = {}  # tensors are kept, so that no other one gets their number
    pairs: list[Pair] = []
    runs: Counter[nn.Module] = Counter()

    def gave(module: nn.Module, given: tuple[Any, ...], value: Tensor) -> None:
        runs[module] += 1
        made[id(value)] = module, value

    def takes(module: nn.Module, given: tuple[Any, ...]) -> None:
        runs[module] += 1
        if len(given) == 1 and id(given[0]) in made:
            pairs.append((made[id(given[0])][0], module))

    modules = [module for module in network.modules() if _plain(module)]
    handles = [module.register_forward_hook(gave) for module in modules if type(module) in CONVOLUTIONS]
    handles += [module.register_forward_pre_hook(takes) for module in modules if type(module) in NORMS]
    with removed(handles):
        outputs = call(network, few, output=output)
    return [pair for pair in pairs if all(runs[module] == 1 for module in pair)], outputs


def _plain(module: nn.Module) -> bool:
    """Whether a module is what its class says: weights of its own in float32, and nobody who looks on."""
    if not plain(module, CONVOLUTIONS + NORMS) or module.training:
        return False
    if type(module) in NORMS:
        tensors = (module.running_mean, module.running_var, module.weight, module.bias)
        return module.running_mean is not None and all(_float32(t) for t in tensors if t is not None)
    return _float32(module._parameters.get("weight"))


def _float32(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.dtype == torch.float32


@contextmanager
def _folding(pairs: Sequence[Pair]) -> Iterator[None]:
    own = [dict(convolution._parameters) for convolution, _ in pairs]
    try:
        for convolution, norm in pairs:
            convolution._parameters.update(_fold(convolution, norm))
            vars(norm)["forward"] = _same
        yield
    finally:
        for (convolution, norm), before in zip(pairs, own, strict=True):
            convolution._parameters.update(before)
            vars(norm).pop("forward", None)


def _same(values: Tensor) -> Tensor:
    return values


def _fold(convolution: Any, norm: Any) -> dict[str, Any]:
    tensors = (convolution.weight, convolution.bias, norm.weight, norm.bias)
    weight, bias = fold(*tensors, norm.running_mean, norm.running_var, eps=norm.eps)
    return {"weight": weight, "bias": bias}


def fold(
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    *,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Weight (out, in, …) and bias (out,) of a convolution, its first two tensors, and the norm behind it.

    The other four tensors are the norm's, (out,) each. Computed in float64, given in the weight's type.
    """
    factor = scale_of(scale, variance, eps)
    moved = ((0.0 if bias is None else bias.detach().double()) - mean.double()) * factor
    if shift is not None:
        moved = moved + shift.detach().double()
    scaled = weight.detach().double() * factor.reshape(-1, *[1] * (weight.ndim - 1))
    return scaled.to(weight.dtype), moved.to(weight.dtype)


def scale_of(gain: Tensor | None, variance: Tensor, eps: float) -> Tensor:
    """(channels,), float64: what a norm with running statistics multiplies by."""
    factor = (variance.double() + eps).rsqrt()
    return factor if gain is None else factor * gain.detach().double()
