"""Train an endpoint: a network, a data set, a seed.

The same seed gives the same tensors on the same processor and thread count, interrupted or not: each epoch
draws its order, its augmentation and its dropout from seeds of its own, and the state is saved in between.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import nets
from ..checkpoints import writing
from ..datasets import Data, open_data
from ..errors import DataError, NetworkError, UsageError
from ..runtime.memory import check_memory
from ..runtime.seeds import derive
from ..version import version
from .evaluation import evaluate
from .running import call

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("cosine", "constant")
PRECISIONS = ("float32", "bfloat16")
MOST = 1_000_000  # epochs, and samples of a batch
STEEPEST = 1e30  # beyond it float32 ends
LOOK = 50  # steps between two looks at the loss


@dataclass(frozen=True)
class Recipe:
    """Everything but the network, the data and the seed.

    The learning rate rises over the first `warmup` share of all steps; "cosine" then takes it down to 0.
    `precision` is that of the products in training; weights are float32 throughout.
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


@dataclass(frozen=True)
class Progress:
    """Where a training is. `loss` is the mean over this epoch so far, in nats."""

    epoch: int  # from 1
    epochs: int
    step: int  # within the epoch, from 1
    steps: int
    loss: float
    test_accuracy: float | None  # 0–1, at the end of an epoch
    seconds: float  # in this process


@dataclass(frozen=True)
class TrainResult:
    """The trained tensors in the network's order, provenance for their file, and one row an epoch."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    history: tuple[dict[str, float], ...]


def default_recipe(
    network: nn.Module,
    samples: int,
    *,
    batch_size: int | None = None,
    optimizer: str | None = None,
    device: str = "cpu",
) -> Recipe:
    """Adam for networks without convolutions; for those with, SGD with momentum, decay and augmentation.

    Ten epochs; where the data set is small as many as make a thousand steps, a hundred at most.
    Convolutions without norms get a tenth of the learning rate: they diverge at 0.1.
    """
    convolutional = has_convolutions(network)
    size = 128 if batch_size is None else max(1, batch_size)
    epochs = min(100, max(10, math.ceil(1000 / math.ceil(samples / size))))
    if (optimizer or ("sgd" if convolutional else "adam")) == "sgd":
        normed = any("Norm" in type(module).__name__ for module in network.modules())
        recipe = Recipe(epochs, size, "sgd", 0.1 if normed else 0.01, warmup=0.1, weight_decay=5e-4)
    else:
        recipe = Recipe(epochs, size, "adam", 1e-3)
    precision = fast_precision(device) if convolutional else "float32"
    return replace(recipe, augment=convolutional, precision=precision)


def has_convolutions(network: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in network.modules())


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


def train(
    net: str | nn.Module,
    data: str | tuple[Data, Data],
    *,
    seed: int = 0,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    schedule: str | None = None,
    weight_decay: float | None = None,
    augment: bool | None = None,
    precision: str | None = None,
    normalize: str | None = None,
    root: Path | None = None,
    limit: int | None = None,
    device: str = "cpu",
    progress: Callable[[Progress], None] | None = None,
    state_path: Path | None = None,
    resume: bool = True,
) -> TrainResult:
    """Train `net`, a name or a module to go on from, on `data`, a reference or a pair (train, test).

    Options left out follow `default_recipe`; `limit` draws that many training samples. With `state_path`
    the state is saved after each epoch, and with `resume` a later call with the same options goes on from
    there; the file is left for the caller to remove once the result is written. A module that is passed in
    is changed. Raises UsageError, DataError, NetworkError (also when the loss is no longer a number) and
    ResourceError.
    """
    train_data, test_data = _open(data, root=root, normalize=normalize, limit=limit, seed=seed)
    if isinstance(net, str):
        shape = tuple(train_data.source.inputs.shape[1:])
        options = {"input_shape": shape, "classes": train_data.classes, "width": width, "norm": norm}
        with torch.device("meta"):  # how large it is, before it is made
            drawn = nets.build(net, **options, depth=depth)
        numbers = sum(tensor.numel() for tensor in drawn.state_dict().values())
        check_memory(f"{net} of {numbers:,} numbers takes", 16 * numbers)  # weights, gradients, two moments
        with seeded(seed, "initialization", device):
            network = nets.build(net, **options, depth=depth)
    else:
        network = net
    asked = {
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "weight_decay": weight_decay,
        "augment": augment,
        "precision": precision,
    }
    recipe = default_recipe(
        network, train_data.samples, batch_size=batch_size, optimizer=optimizer, device=device
    )
    recipe = replace(recipe, **{key: value for key, value in asked.items() if value is not None})
    _check(recipe)

    shaped = {"width": width, "norm": norm, "depth": depth}
    identity = {
        "command": "train",
        "version": version(),
        "net": net if isinstance(net, str) else type(net).__name__,
        **{key: value for key, value in shaped.items() if value is not None},
        "data": train_data.name,
        "normalization": train_data.normalization,
        "samples": train_data.samples,
        "seed": seed,
        **asdict(recipe),
    }
    metadata = {f"rebasin.{key}": str(value) for key, value in identity.items()}
    history = _run(
        network, train_data, test_data, recipe, seed, device, progress, state_path, metadata, resume=resume
    )
    for split, measured in (("train", train_data), ("test", test_data)):
        accuracy = evaluate(network, measured.with_batch_size(500), device=device).accuracy
        metadata[f"rebasin.{split}_accuracy"] = f"{accuracy:.4f}"
    state = network.state_dict()
    tensors = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in state.items()}
    return TrainResult(tensors, metadata, tuple(history))


def _open(data: str | tuple[Data, Data], *, limit: int | None, **options: Any) -> tuple[Data, Data]:
    if isinstance(data, str):
        data = open_data(data, "train", limit=limit, **options), open_data(data, "test", **options)
    if not isinstance(data[0], Data):
        raise UsageError(
            "training needs the samples of a data set, not the batches of a loader",
            hint="Give a built-in data set, npz:FILE or imagefolder:DIR.",
        )
    known, tested = data[0].classes, data[1].classes
    if tested > known:
        raise DataError(
            f"{data[1].name}: test samples are of {tested} classes, training samples of {known}",
            hint="A network trained on these has no output for the other classes",
        )
    return data


def _run(
    network: nn.Module,
    data: Data,
    test_data: Data,
    recipe: Recipe,
    seed: int,
    device: str,
    progress: Callable[[Progress], None] | None,
    state_path: Path | None,
    identity: Mapping[str, str],
    *,
    resume: bool,
) -> list[dict[str, float]]:
    """Train in place, with `resume` from the state where there is one; the rows of all epochs."""
    data, began = data.with_batch_size(recipe.batch_size), time.monotonic()
    network.to(device)
    if has_convolutions(network):
        network.to(memory_format=memory_format(device, recipe.precision))
    optimizer = _optimizer(network, recipe)
    history = _resume(state_path, network, optimizer, identity, device) if state_path and resume else []

    for epoch in range(len(history), recipe.epochs):

        def show(step: int, loss: float, accuracy: float | None = None, epoch: int = epoch) -> None:
            if progress:
                seconds = time.monotonic() - began
                progress(Progress(epoch + 1, recipe.epochs, step, len(data), loss, accuracy, seconds))

        with seeded(seed, f"dropout of epoch {epoch}", device):
            loss = _epoch(network, optimizer, data, recipe, seed, epoch, device, show)
        with _autocast(device, recipe.precision):  # quick, for the eye; what is recorded is float32
            scores = evaluate(network, test_data, device=device)
        history.append({"loss": loss, "test_loss": scores.loss, "test_accuracy": scores.accuracy})
        if state_path:
            _save(state_path, network, optimizer, history, identity)
        show(len(data), loss, scores.accuracy)
    return history


def _epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    recipe: Recipe,
    seed: int,
    epoch: int,
    device: str,
    show: Callable[[int, float], None],
) -> float:
    """One pass over the data; the mean loss of its samples while they were trained on."""
    generator = torch.Generator().manual_seed(derive(seed, f"order of epoch {epoch}"))
    total, seen, mean, steps = torch.zeros((), device=device), 0, math.nan, len(data)
    convolutional = has_convolutions(network)
    network.train()
    for step, (inputs, targets) in enumerate(data.shuffled(generator, augment=recipe.augment), start=1):
        rate = learning_rate_at(recipe, epoch * steps + step - 1, recipe.epochs * steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = inputs.to(device), targets.to(device)
        if convolutional and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=memory_format(device, recipe.precision))
        optimizer.zero_grad(set_to_none=True)
        with _autocast(device, recipe.precision):
            outputs = call(network, inputs)
        loss = F.cross_entropy(outputs.float(), targets)
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(targets)
        seen += len(targets)
        if step % LOOK == 0 or step == steps:
            mean = total.item() / seen
            if not math.isfinite(mean):
                raise NetworkError(
                    f"training diverged: the loss is {mean} by step {step} of epoch {epoch + 1}",
                    hint=f"Try a tenth of the learning rate: {recipe.learning_rate / 10:g}.",
                )
            if step < steps:
                show(step, mean)
    return mean


def learning_rate_at(recipe: Recipe, step: int, steps: int) -> float:
    """The rate of one step of all: a linear rise, then constant or half a cosine towards 0."""
    rise = round(recipe.warmup * steps)
    if step < rise:
        return recipe.learning_rate * (step + 1) / rise
    if recipe.schedule == "constant":
        return recipe.learning_rate
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


@contextmanager
def seeded(seed: int, purpose: str, device: str = "cpu") -> Iterator[None]:
    """Torch's own randomness from a derived seed, and as it was afterwards."""
    kind = torch.device(device)
    with torch.random.fork_rng([kind] if kind.type == "cuda" else []):
        torch.manual_seed(derive(seed, purpose))
        yield


def _autocast(device: str, precision: str) -> torch.autocast:
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16")


def _optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), **options)
    return torch.optim.SGD(network.parameters(), momentum=0.9, nesterov=True, **options)


def _check(recipe: Recipe) -> None:
    for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
        if (value := getattr(recipe, name)) not in known:
            raise UsageError(f"unknown {name} {value!r}", hint=f"Choose {' or '.join(known)}.")
    problems = [
        f"{name} is {str(getattr(recipe, name))[:20]}; expected {expected}"
        for name, good, expected in (
            ("epochs", 1 <= recipe.epochs <= MOST, f"1 to {MOST}"),
            ("batch_size", 1 <= recipe.batch_size <= MOST, f"1 to {MOST}"),
            ("learning_rate", 0 < recipe.learning_rate <= STEEPEST, "a positive number"),
            ("weight_decay", 0 <= recipe.weight_decay <= STEEPEST, "0 or more"),
        )
        if not good
    ]
    if problems:
        raise UsageError("these options make no training", problems=problems)


def _save(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    history: list[dict[str, float]],
    identity: Mapping[str, str],
) -> None:
    state = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": history,
        "identity": dict(identity),
    }
    content = io.BytesIO()
    torch.save(state, content)
    writing.write_text_atomic(path, content.getvalue(), force=True)


def _resume(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, str],
    device: str,
) -> list[dict[str, float]]:
    """Load the state into network and optimizer; the rows of the epochs it has. Raises UsageError."""
    if not path.exists():
        return []
    try:
        state = torch.load(path, weights_only=True, map_location=device)
        found = state["identity"]
        differing = sorted(key for key in {*identity, *found} if identity.get(key) != found.get(key))
        if not differing:
            network.load_state_dict(state["network"])
            optimizer.load_state_dict(state["optimizer"])
            return [dict(row) for row in state["history"]]
    except Exception as cause:  # whatever a file that is not ours makes torch.load raise
        raise UsageError(f"{path} is not the state of a training", hint="Remove it to begin anew.") from cause
    raise UsageError(
        f"{path} is the state of another training",
        problems=[f"{key}: {found.get(key)} there, {identity.get(key)} here" for key in differing],
        hint="Give the same options to go on with it, or remove it to begin anew.",
    )
