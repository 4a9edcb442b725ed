"""What a training is, before it begins: the network, the samples, the options that were left open.

A dry run ends here, and `training` begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from .. import nets
from ..datasets import Data, open_data
from ..datasets._portions import Portion
from ..errors import DataError, UsageError
from ..runtime.memory import check_memory
from ..runtime.seeds import seeded
from ..version import version
from .attacks import Attack
from .initial import INITS, initialize
from .schedules import SCHEDULES

OPTIMIZERS = ("adam", "sgd")
PRECISIONS = ("float32", "bfloat16")
MOST = 1_000_000  # epochs, and samples of a batch
STEEPEST = 1e30  # beyond it float32 ends


@dataclass(frozen=True)
class Recipe:
    """Everything but the network, the data and the seed.

    The learning rate rises over the first `warmup` share of all steps; "cosine" then takes it down to 0,
    "late" is flat for half of them, then falls in a line to a hundredth at nine tenths, "halving" halves it
    twelve times; "triangle" rises and falls by the epoch, without a warmup. `momentum` and `nesterov` are of
    SGD alone. `precision` is that of the products in training; weights are float32 throughout. `attack`:
    train on images that are attacked so (`Attack.parse`). `init`: first weights by a rule (`initial`).
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


class Wanted(TypedDict, total=False):
    """Options of a training; those of `Recipe` that are left out follow `default_recipe`.

    `width`, `norm`, `depth` and what only some nets have (`nets.FURTHER`) are the network's, where it is
    given by its name; those of `Portion` say which training samples are taken; `root` and `normalize` are of
    a data set by name.
    """

    seed: int
    width: float | None
    norm: str | None
    depth: int | None
    heads: int | None
    patch: int | None
    activation: str | None
    positions: str | None
    epochs: int | None
    batch_size: int | None
    optimizer: str | None
    learning_rate: float | None
    schedule: str | None
    warmup: float | None
    weight_decay: float | None
    augment: bool | None
    precision: str | None
    attack: str | None
    momentum: float | None
    nesterov: bool | None
    init: str | None
    normalize: str | None
    root: Path | None
    limit: int | None
    subset: float | None
    classes_split: str | None
    part: str | None
    split_seed: int | None
    device: str


@dataclass(frozen=True)
class Setup:
    """A training that can begin; `identity` is what two trainings must agree in to be the same one.

    `shaped` are the options of the network that were given, `portion` those of its samples.
    """

    network: nn.Module
    train: Data
    test: Data
    recipe: Recipe
    identity: dict[str, str]
    seed: int
    device: str
    shaped: dict[str, Any]
    portion: dict[str, Any]

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.network.parameters())

    @property
    def steps(self) -> int:
        """Of all epochs."""
        return self.recipe.epochs * len(self.train.with_batch_size(self.recipe.batch_size))


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
    if (optimizer or ("sgd" if convolutional and not attending else "adam")) == "sgd":
        normed = any("Norm" in type(module).__name__ for module in network.modules())
        recipe = Recipe(epochs, size, "sgd", 0.1 if normed else 0.01, warmup=0.1, weight_decay=5e-4)
        recipe = replace(recipe, momentum=0.9, nesterov=True)
    else:
        recipe = Recipe(epochs, size, "adam", 1e-3, warmup=0.1 * attending)
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
    """bfloat16 where the hardware multiplies it natively (a third of the time), else float32."""
    kind = torch.device(device).type
    if kind == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)  # no public way to ask
    return "bfloat16" if kind == "cpu" and has_tiles() else "float32"


def prepare(net: str | nn.Module, data: str | tuple[Data, Data], **wanted: Unpack[Wanted]) -> Setup:
    """The training of `net`, a name or a module, on `data`, a reference or a pair (train, test).

    Raises UsageError, DataError, NetworkError, and ResourceError for a network that does not fit in memory.
    """
    seed, device = wanted.get("seed", 0), wanted.get("device", "cpu")
    options = {key: wanted.get(key) for key in ("root", "normalize")}
    portion = Portion(**{name: wanted.get(name) for name in Portion.__dataclass_fields__})
    train, test = _open(data, **options)
    train = portion.of(train, seed)
    shaped = {key: wanted.get(key) for key in ("width", "norm", "depth", *nets.FURTHER)}
    network = _drawn(net, train, shaped, seed, device) if isinstance(net, str) else net
    own = {name: wanted[name] for name in Recipe.__dataclass_fields__ if wanted.get(name) is not None}
    recipe = default_recipe(
        network,
        train.samples,
        batch_size=wanted.get("batch_size"),
        optimizer=wanted.get("optimizer"),
        device=device,
    )
    recipe = replace(recipe, **own)
    if recipe.schedule == "triangle" and "warmup" not in own:
        recipe = replace(recipe, warmup=0.0)  # it rises by itself
    if own.get("momentum") == 0:
        recipe = replace(recipe, nesterov=own.get("nesterov", False))
    _check(recipe, own)
    if own.get("augment"):
        check_augmentation(train)
    if recipe.init is not None:
        if not isinstance(net, str):
            raise UsageError("--init is for a network that begins anew", hint="Leave it out")
        with seeded(seed, "initialization", device):
            initialize(network, recipe.init)
    if recipe.attack is not None:
        recipe = replace(recipe, attack=str(Attack.parse(recipe.attack)))
    shaped = {key: value for key, value in shaped.items() if value is not None}
    identity = {
        "command": "train",
        "version": version(),
        "net": net if isinstance(net, str) else type(net).__name__,
        **shaped,
        "data": train.name,
        "normalization": train.normalization,
        **({} if train.vocabulary is None else {"vocabulary": train.vocabulary}),
        "samples": train.samples,
        **portion.told(),
        "seed": seed,
        **told(recipe),
    }
    metadata = {f"rebasin.{key}": str(value) for key, value in identity.items()}
    return Setup(network, train, test, recipe, metadata, seed, device, shaped, portion.told())


def check_augmentation(data: Any) -> None:
    """Raise UsageError for data that does not say how its samples are augmented."""
    if getattr(data, "augmentation", None) is None:
        raise UsageError(
            f"--augment: {getattr(data, 'name', 'this data')} does not say how its samples are augmented",
            hint="Leave it out; cifar10 and cifar100 do",
        )


def told(recipe: Recipe) -> dict[str, Any]:
    """The recipe by names, without what it does not have."""
    return {name: value for name, value in asdict(recipe).items() if value is not None}


def _drawn(net: str, data: Data, shaped: dict[str, Any], seed: int, device: str) -> nn.Module:
    """A network of ours for these samples, with initial weights by the seed."""
    reads = getattr(nets.variants().get(net), "READS", "images")
    if (reads == "text") != (data.vocabulary is not None):
        raise UsageError(
            f"{net} reads {reads}, and {data.name} is {'images' if data.vocabulary is None else 'text'}",
            hint="Text is read by gpt (--data alice, text:FILE), images by all other nets.",
        )
    options = {"input_shape": tuple(data.source.inputs.shape[1:]), "classes": data.classes, **shaped}
    with torch.device("meta"):  # how large it is, before it is made
        drawn = nets.build(net, **options)
    numbers = sum(tensor.numel() for tensor in drawn.state_dict().values())
    check_memory(f"{net} of {numbers:,} numbers takes", 16 * numbers)  # weights, gradients, two moments
    with seeded(seed, "initialization", device):
        return nets.build(net, **options)


def _open(data: str | tuple[Data, Data], **options: Any) -> tuple[Data, Data]:
    if isinstance(data, str):
        data = open_data(data, "train", **options), open_data(data, "test", **options)
    if not isinstance(data[0], Data):
        raise UsageError(
            "training needs the samples of a data set, not the batches of a loader",
            hint="Give a built-in data set, npz:FILE, imagefolder:DIR or text:FILE.",
        )
    known, tested = data[0].classes, data[1].classes
    if tested > known:
        raise DataError(
            f"{data[1].name}: test samples are of {tested} classes, training samples of {known}",
            hint="A network trained on these has no output for the other classes",
        )
    return data


def _check(recipe: Recipe, given: Mapping[str, Any]) -> None:
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
            ("momentum", 0 <= momentum < 1, "0 or more, and below 1"),
            ("warmup", 0 <= recipe.warmup <= 1, "0 to 1"),
        )
        if not good
    ]
    if problems:
        raise UsageError("these options make no training", problems=problems)
