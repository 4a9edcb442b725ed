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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checkpoints import writer
from ..datasets import Data
from ..errors import NetworkError, UsageError
from ..networks.attacks import Attack, Attacker, attacked, each_loss, statistics_kept
from ..networks.classes import counted
from ..networks.evaluation import evaluate
from ..networks.forward import call
from ..runtime import files, optimizers
from ..runtime.ranks import ALONE, Ranks
from ..runtime.seeds import generator, seeded
from .learner import HALF, NEAR, UNDER_ATTACK, Learner
from .loop import Passes, learn
from .recipe import Recipe, has_convolutions, learning_rate_at, memory_format
from .setup import Setup, Wanted, prepare

LOOK = 50  # steps between two looks at the loss
ATTACKED = 1_000  # test samples that are attacked in the end


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


def train(
    net: str | nn.Module,
    data: str | tuple[Data, Data],
    *,
    progress: Callable[[Progress], None] | None = None,
    state_path: Path | None = None,
    resume: bool = True,
    keep: Keep | None = None,
    ranks: Ranks = ALONE,
    **wanted: Unpack[Wanted],
) -> TrainResult:
    """Train `net`, a name or a module to go on from, on `data`, a reference or a pair (train, test).

    `keep` gets what epochs leave. With `state_path` the state is saved after each epoch, and with `resume` a
    later call with the same options goes on from there; the file is left for the caller to remove once the
    result is written. A module that is passed in is changed. Several `ranks` that call this alike share the
    steps; the first one keeps the state and what `keep` gets. Raises what `prepare` does, NetworkError when
    the loss is no longer a number, and ResourceError.
    """
    setup = ranks.each(prepare, net, data, **wanted)
    return trained(setup, progress=progress, state_path=state_path, resume=resume, keep=keep, ranks=ranks)


def trained(
    setup: Setup,
    *,
    progress: Callable[[Progress], None] | None = None,
    state_path: Path | None = None,
    resume: bool = True,
    keep: Keep | None = None,
    ranks: Ranks = ALONE,
) -> TrainResult:
    """As `train`, of what is prepared."""
    history = _Training(setup, progress, state_path, keep, ranks, resume=resume).run()
    metadata = dict(setup.identity)
    for split, measured in (("train", setup.train), ("test", setup.test)):
        batches = measured.with_batch_size(500)
        accuracy = evaluate(setup.network, batches, device=setup.device, ranks=ranks).accuracy
        metadata[f"rebasin.{split}_accuracy"] = f"{accuracy:.4f}"
    if setup.recipe.attack:
        few = setup.test.subset(ATTACKED, setup.seed).with_batch_size(500)
        tested = attacked(few, setup.network, Attack.parse(setup.recipe.attack), seed=setup.seed)
        metadata["rebasin.attacked_accuracy"] = (
            f"{evaluate(setup.network, tested, device=setup.device, ranks=ranks).accuracy:.4f}"
        )
    return TrainResult(_tensors(setup.network), metadata, tuple(history))


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    state = network.state_dict()
    return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in state.items()}


@dataclass(frozen=True)
class Keep:
    """`save` gets an epoch's number, its tensors and metadata: one of `every`, 0 for the first weights."""

    every: int
    save: Callable[[int, dict[str, Tensor], dict[str, str]], None]

    def epochs(self, epochs: int) -> range:
        return range(0, epochs + 1, self.every)

    def __call__(self, setup: Setup, epoch: int) -> None:
        if epoch % self.every:
            return
        tested = evaluate(setup.network, setup.test, device=setup.device)
        metadata = {"rebasin.epoch": str(epoch), "rebasin.test_accuracy": f"{tested.accuracy:.4f}"}
        self.save(epoch, _tensors(setup.network), setup.identity | metadata)


class _Training(Learner):
    """A network trained in place, with `resume` from the state where there is one; one row an epoch."""

    every = LOOK

    def __init__(
        self,
        setup: Setup,
        progress: Callable[[Progress], None] | None,
        state_path: Path | None,
        keep: Keep | None,
        ranks: Ranks,
        *,
        resume: bool,
    ):
        self.ranks = ranks
        network, recipe, device = setup.network, setup.recipe, setup.device
        self.setup, self.progress, self.state_path, self.keep = setup, progress, state_path, keep
        self.network, self.recipe, self.device, self.rate = network, recipe, device, recipe.learning_rate
        data = setup.train.with_batch_size(recipe.batch_size)
        self.passes = Passes(data, setup.seed, recipe.epochs, augment=recipe.augment)
        self.steps, self.epoch, self.began = len(data), 0, time.monotonic()
        network.to(device)
        self.convolutional = has_convolutions(network)
        if self.convolutional:
            ordered: Any = network  # PyTorch's own types do not know this argument
            ordered.to(memory_format=memory_format(device, recipe.precision))
        self.attacker = Attacker(Attack.parse(recipe.attack), data) if recipe.attack else None
        self.alone = UNDER_ATTACK if recipe.attack else ""
        self.near = HALF if recipe.precision == "bfloat16" else NEAR
        self.optimizer = _optimizer(network, recipe)
        self.history: list[dict[str, float]] = []
        whole = network, self.optimizer, setup.identity
        if state_path and resume:
            self.history = ranks.first(_resume, state_path, *whole, device)
        if ranks.size > 1:  # the state is the first one's, and first weights may round elsewhere
            state = ranks.first(_state, network, self.optimizer, self.history, setup.identity)
            _load(io.BytesIO(state), *whole, device)
        self.done = self.steps * len(self.history)

    def run(self) -> list[dict[str, float]]:
        if self.keep is not None and not self.history:
            self.ranks.first(self.keep, self.setup, 0)
        learn(self, self.passes, self.ranks)
        return self.history

    @contextmanager
    def within(self, epoch: int) -> Iterator[None]:
        self.epoch, self.starts = epoch, generator(self.setup.seed, f"attack of epoch {epoch}")
        self.network.train()
        with seeded(self.setup.seed, f"dropout of epoch {epoch}", self.device):
            yield

    def counted(self, targets: Any, size: int) -> int:
        return counted(targets)

    def begin_step(self, inputs: Any, targets: Any) -> None:
        rate = learning_rate_at(self.recipe, self.done, self.recipe.epochs * self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)

    def loss(self, inputs: Any, targets: Any) -> Tensor:
        recipe, network = self.recipe, self.network
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        if self.convolutional and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=memory_format(self.device, recipe.precision))
        if self.attacker is not None:  # in the mode that is trained in
            with statistics_kept(network), _autocast(self.device, recipe.precision):
                inputs = self.attacker(inputs, targets, each_loss(network), self.starts)
        with _autocast(self.device, recipe.precision):
            outputs = call(network, inputs)
        return F.cross_entropy(outputs.float(), targets)

    def move(self) -> None:
        self.optimizer.step()

    def after(self, step: int, mean: float) -> None:
        if step % LOOK == 0 and step < self.steps:
            self._show(step, mean)

    def ended(self, epoch: int, mean: float) -> None:
        if math.isnan(mean):  # it was before an interruption
            return
        with _autocast(self.device, self.recipe.precision):  # quick, for the eye; what is recorded is float32
            scores = evaluate(self.network, self.setup.test, device=self.device, ranks=self.ranks)
        if not math.isfinite(scores.loss):  # what the last step broke
            raise NetworkError(
                f"the test loss is {scores.loss} after epoch {epoch + 1}", hint="Try a smaller --lr"
            )
        self.history.append({"loss": mean, "test_loss": scores.loss, "test_accuracy": scores.accuracy})
        if self.keep is not None:  # before the state, which says that the epoch is done
            self.ranks.first(self.keep, self.setup, epoch + 1)
        if self.state_path:
            self.ranks.first(
                _save, self.state_path, self.network, self.optimizer, self.history, self.setup.identity
            )
        self._show(self.steps, mean, scores.accuracy)

    def _show(self, step: int, loss: float, accuracy: float | None = None) -> None:
        if self.progress:
            seconds = time.monotonic() - self.began
            epochs = self.recipe.epochs
            self.progress(Progress(self.epoch + 1, epochs, step, self.steps, loss, accuracy, seconds))


def _autocast(device: str, precision: str) -> torch.autocast:
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16")


def _optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer != "sgd":
        kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
        return optimizers.make(kind, network.parameters(), **options)
    options |= {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
    return optimizers.make(torch.optim.SGD, network.parameters(), **options)


def _save(path: Path, *state: Any) -> None:
    writer.write_text_atomic(path, _state(*state), force=True)


def _state(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    history: list[dict[str, float]],
    identity: Mapping[str, str],
) -> bytes:
    state = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": history,
        "identity": dict(identity),
    }
    content = io.BytesIO()
    torch.save(state, content)
    return content.getvalue()


def _load(
    file: Any,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, str],
    device: str,
) -> tuple[list[dict[str, float]], list[str]]:
    """The state into network and optimizer; the rows of the epochs it has, or how its training differs."""
    state = torch.load(file, weights_only=True, map_location=device)
    found = state["identity"]
    differing = sorted(key for key in {*identity, *found} if identity.get(key) != found.get(key))
    if not differing:
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
    told = [f"{key}: {found.get(key)} there, {identity.get(key)} here" for key in differing]
    return [dict(row) for row in state["history"]], told


def _resume(path: Path, *into: Any) -> list[dict[str, float]]:
    """Load the state (`_load`); the rows of the epochs it has. Raises UsageError."""
    if not path.exists():
        return []
    try:
        with files.opened(path) as file:
            rows, differing = _load(file, *into)
        if not differing:
            return rows
    except Exception as cause:  # whatever a file that is not ours makes torch.load raise
        raise UsageError(f"{path} is not the state of a training", hint="Remove it to begin anew.") from cause
    raise UsageError(
        f"{path} is the state of another training",
        problems=differing,
        hint="Give the same options to go on with it, or remove it to begin anew.",
    )
