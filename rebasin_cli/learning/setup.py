"""What a training is, before it begins: the network, the samples, all options decided.

A dry run ends here, and `training` begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn

from .. import nets
from ..datasets import Data, open_data
from ..datasets.portions import Portion
from ..datasets.rotation import with_rotation
from ..errors import DataError, UsageError
from ..networks.attacks import Attack
from ..runtime.memory import check_memory
from ..runtime.seeds import seeded
from ..version import version
from .initial import initialize
from .recipe import Recipe, check, default_recipe, told


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
    rotate: float | None
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


def prepare(net: str | nn.Module, data: str | tuple[Data, Data], **wanted: Unpack[Wanted]) -> Setup:
    """The training of `net`, a name or a module, on `data`, a reference or a pair (train, test).

    Raises UsageError, DataError, NetworkError, and ResourceError for a network that does not fit in memory.
    """
    seed, device = wanted.get("seed", 0), wanted.get("device", "cpu")
    options = {key: wanted.get(key) for key in ("root", "normalize")}
    given: dict[str, Any] = {**wanted}
    portion = Portion(**{name: given.get(name) for name in Portion.__dataclass_fields__})
    train, test = _open(data, **options)
    train = portion.of(train, seed)
    shaped = {key: wanted.get(key) for key in ("width", "norm", "depth", *nets.FURTHER)}
    network = _drawn(net, train, shaped, seed, device) if isinstance(net, str) else net
    own = {name: given[name] for name in Recipe.__dataclass_fields__ if given.get(name) is not None}
    recipe = default_recipe(
        network,
        train.samples,
        batch_size=wanted.get("batch_size"),
        optimizer=wanted.get("optimizer"),
        device=device,
    )
    recipe = replace(recipe, augment=recipe.augment and train.augmentation is not None)
    recipe = replace(recipe, **own)
    if recipe.schedule == "triangle" and "warmup" not in own:
        recipe = replace(recipe, warmup=0.0)  # it rises by itself
    if own.get("momentum") == 0:
        recipe = replace(recipe, nesterov=own.get("nesterov", False))
    check(recipe, own)
    if own.get("augment"):
        check_augmentation(train)
    train = with_rotation(train, recipe.rotate)
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


def _drawn(net: str, data: Data, shaped: dict[str, Any], seed: int, device: str) -> nn.Module:
    """A network of ours for these samples, with initial weights by the seed."""
    reads = getattr(nets.variants().get(net), "READS", "images")
    if (reads == "text") != (data.vocabulary is not None):
        raise UsageError(
            f"{net} reads {reads}, and {data.name} is {'images' if data.vocabulary is None else 'text'}",
            hint="Text is read by gpt (--data alice, text:FILE), images by all other nets.",
        )
    options = {"input_shape": tuple(data.source.inputs.shape[1:]), "classes": data.classes, **shaped}
    drawn = nets.without_values(net, **options)  # how large it is, before it is made
    numbers = sum(tensor.numel() for tensor in drawn.state_dict().values())
    check_memory(f"{net} of {numbers:,} numbers takes", 16 * numbers)  # weights, gradients, two moments
    with seeded(seed, "initialization", device):
        return nets.build(net, **options)


def _open(data: str | tuple[Data, Data], **options: Any) -> tuple[Data, Data]:
    if isinstance(data, str):
        train, test = open_data(data, "train", **options), open_data(data, "test", **options)
    else:
        train, test = data
    if not isinstance(train, Data) or not isinstance(test, Data):
        raise UsageError(
            "training needs the samples of a data set, not the batches of a loader",
            hint="Give a built-in data set, npz:FILE, imagefolder:DIR or text:FILE.",
        )
    known, tested = train.classes, test.classes
    if tested > known:
        raise DataError(
            f"{test.name}: test samples are of {tested} classes, training samples of {known}",
            hint="A network trained on these has no output for the other classes",
        )
    return train, test
