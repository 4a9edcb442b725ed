"""How a network is trained: the options of a training, what they must be, and the rate of every step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from ..errors import UsageError
from .initial import INITS

OPTIMIZERS = ("adam", "adamw", "sgd")
PRECISIONS = ("float32", "bfloat16")
SCHEDULES = ("cosine", "constant", "late", "halving", "triangle")
HALVINGS = 12  # over all epochs, as 250 epochs with one every 20
PEAK = 5  # the epoch in which a triangle is highest
MOST = 1_000_000  # epochs, and samples of a batch
STEEPEST = 1e30  # beyond it float32 ends


@dataclass(frozen=True)
class Recipe:
    """Everything but the network, the data and the seed.

    The learning rate rises over the first `warmup` share of all steps; "cosine" then takes it down to 0,
    "late" is flat for half of them, then falls in a line to a hundredth at nine tenths, "halving" halves it
    twelve times; "triangle" rises and falls by the epoch, without a warmup. `momentum` and `nesterov` are of
    SGD alone. `weight_decay` is added to the gradient ("adam", "sgd"), or taken from the weights themselves,
    times the learning rate ("adamw"). `precision` is that of the products in training; weights are float32
    throughout. `attack`: train on images that are attacked so (`Attack.parse`). `init`: first weights by a
    rule (`initial`). `rotate`: images are turned by up to so many degrees.
    """

    epochs: int
    batch_size: int
    optimizer: str
    learning_rate: float
    schedule: str = "cosine"
    warmup: float = 0.0
    weight_decay: float = 0.0
    augment: bool = False
    precision: str = "float32"
    attack: str | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    init: str | None = None
    rotate: float | None = None


def default_recipe(
    network: nn.Module,
    samples: int,
    *,
    batch_size: int | None = None,
    optimizer: str | None = None,
    device: str = "cpu",
) -> Recipe:
    """Adam for networks without convolutions; for those with, SGD with momentum, decay and augmentation.

    Transformers get Adam with a warmup, and augmentation of images. Ten epochs; where the data set is small
    as many as make a thousand steps, a hundred at most. Convolutions without norms get a tenth of the
    learning rate: they diverge at 0.1.
    """
    convolutional, attending = has_convolutions(network), attends(network)
    size = 128 if batch_size is None else max(1, batch_size)
    epochs = min(100, max(10, math.ceil(1000 / math.ceil(samples / size))))
    kind = optimizer or ("sgd" if convolutional and not attending else "adam")
    if kind == "sgd":
        normed = any("Norm" in type(module).__name__ for module in network.modules())
        recipe = Recipe(epochs, size, "sgd", 0.1 if normed else 0.01, warmup=0.1, weight_decay=5e-4)
        recipe = replace(recipe, momentum=0.9, nesterov=True)
    else:
        recipe = Recipe(epochs, size, kind, 1e-3, warmup=0.1 * attending)
        recipe = replace(recipe, weight_decay=0.01 if kind == "adamw" else 0.0)  # as PyTorch has it
    precision = fast_precision(device) if convolutional and not attending else "float32"
    return replace(recipe, augment=convolutional, precision=precision)


def has_convolutions(network: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in network.modules())


def attends(network: nn.Module) -> bool:
    return any("Attention" in type(module).__name__ for module in network.modules())


def memory_format(device: str, precision: str) -> torch.memory_format:
    """Channels last where it pays; not in float32 on CPUs, where torch 2.13 can crash in backward."""
    plain = torch.device(device).type == "cpu" and precision == "float32"
    return torch.contiguous_format if plain else torch.channels_last


def fast_precision(device: str) -> str:
    """bfloat16 where the hardware multiplies it natively (a third to half of the time), else float32."""
    kind = torch.device(device).type
    if kind == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:  # by tiles or by vectors; there is no public way to ask
        ways = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
        native = kind == "cpu" and any(getattr(torch.cpu, way, lambda: False)() for way in ways)
    return "bfloat16" if native else "float32"


def told(recipe: Recipe) -> dict[str, Any]:
    """The recipe by names, without what it does not have."""
    return {name: value for name, value in asdict(recipe).items() if value is not None}


def check(recipe: Recipe, given: Mapping[str, Any]) -> None:
    """Raises UsageError; `given` is what was asked for, which must mean something."""
    named = [("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", PRECISIONS), ("init", INITS)]
    for name, known in named:
        value = getattr(recipe, name)
        if value not in known and not (name == "init" and value is None):
            raise UsageError(f"unknown {name} {value!r}", hint=f"Choose {' or '.join(known)}.")
    for name in ("momentum", "nesterov"):
        if recipe.optimizer != "sgd" and name in given:
            raise UsageError(
                f"--{name} is of SGD, and this is {recipe.optimizer}", hint="Add --optimizer sgd"
            )
    if recipe.nesterov and not recipe.momentum:
        raise UsageError("--nesterov changes nothing without momentum", hint="Give a --momentum such as 0.9")
    if recipe.schedule == "triangle" and recipe.warmup:
        raise UsageError("--schedule triangle rises by itself", hint="Leave out --warmup")
    if recipe.schedule == "triangle" and recipe.epochs < 2:
        raise UsageError(
            "--schedule triangle is 0 in the first epoch, and there is no other",
            hint="Give two --epochs or more",
        )
    momentum = recipe.momentum or 0.0
    problems = [
        f"{name} is {str(getattr(recipe, name))[:20]}; expected {expected}"
        for name, good, expected in (
            ("epochs", 1 <= recipe.epochs <= MOST, f"1 to {MOST}"),
            ("batch_size", 1 <= recipe.batch_size <= MOST, f"1 to {MOST}"),
            ("learning_rate", 0 < recipe.learning_rate <= STEEPEST, "a positive number"),
            ("weight_decay", 0 <= recipe.weight_decay <= STEEPEST, "0 or more"),
            ("rotate", 0 <= (recipe.rotate or 0) <= 180, "0 to 180 degrees"),
            ("momentum", 0 <= momentum < 1, "0 or more, and below 1"),
            ("warmup", 0 <= recipe.warmup <= 1, "0 to 1"),
        )
        if not good
    ]
    if problems:
        raise UsageError("these options make no training", problems=problems)


def learning_rate_at(recipe: Recipe, step: int, steps: int) -> float:
    """The rate of one step of all: a linear rise, then as the schedule says."""
    if recipe.schedule == "triangle":
        return recipe.learning_rate * triangle(step * recipe.epochs // steps, recipe.epochs)
    rise = round(recipe.warmup * steps)
    if step < rise:
        return recipe.learning_rate * (step + 1) / rise
    return recipe.learning_rate * _share(recipe.schedule, step / steps, (step - rise) / (steps - rise))


def _share(schedule: str, whole: float, behind: float) -> float:
    """Of the largest rate: where a share `whole` of all steps is done, `behind` of those after the rise."""
    if schedule == "constant":
        return 1.0
    if schedule == "late":
        return 1 - 0.99 * min(max((whole - 0.5) / 0.4, 0.0), 1.0)
    return halving(whole) if schedule == "halving" else cosine(behind)


def cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))


def halving(share: float) -> float:
    return 0.5 ** int(share * HALVINGS)


def triangle(epoch: int, epochs: int) -> float:
    """The same throughout an epoch: 0 in the first, highest in the sixth, down in a line to the end."""
    peak = min(PEAK, epochs // 2)
    return epoch / peak if epoch <= peak else (epochs - epoch) / (epochs - peak)
