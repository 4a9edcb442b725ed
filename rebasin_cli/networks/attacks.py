"""Attacks on images: small changes of pixels that make a network's loss large (projected gradient descent).

Pixels lie in 0–1, and so do the sizes of an attack: normalisation belongs to the network, so what it gets is
moved by ε over the deviation of the channel. Every step goes up by the sign of the gradient, and back into
the box of ±ε around the image and into 0–1.

Madry et al. 2018, Towards deep learning models resistant to adversarial attacks, section 2.1 (ICLR).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..datasets import Data
from ..errors import DataError, UsageError
from ..registry.options import real
from ..runtime.seeds import generator
from .forward import call, fed

FORM = "ε of pixels in 0–1, and what else is not as usual: 8/255 or eps=0.1,step=0.025,steps=5,restarts=1"
KEYS = {"eps": "epsilon", "step": "alpha", "steps": "steps", "restarts": "restarts"}
MOST = 10_000  # steps and restarts

Loss = Callable[[Any, Any], Tensor]  # of a batch, each sample's (N,) or their mean


@dataclass(frozen=True)
class Attack:
    """`steps` of `alpha` within `epsilon` of every pixel, from a random start; the worst of `restarts`."""

    epsilon: float
    alpha: float
    steps: int = 5
    restarts: int = 1

    @staticmethod
    def parse(text: str) -> Attack:
        """As `FORM` says; a step is a quarter of ε where nothing else is said. Raises UsageError."""
        parts = text.split(",")
        named = [part.partition("=") for part in ([f"eps={parts[0]}"] if "=" not in parts[0] else parts[:1])]
        named += [part.partition("=") for part in parts[1:]]
        found: dict[str, float] = {}
        for key, _, value in named:
            try:
                over, slash, under = value.partition("/")
                number = real(over) / (real(under) if slash else 1.0)
            except (ValueError, ZeroDivisionError):
                number = math.nan
            good = {"eps": 0 <= number <= 1, "step": 0 <= number <= 1}.get(key.strip())
            if good is None:
                good = number == number // 1 and 1 <= number <= MOST
            if key.strip() not in KEYS or not good or KEYS[key.strip()] in found:
                raise UsageError(f"--attack {text!r}: cannot read {key}={value}", hint=f"Give {FORM}")
            found[KEYS[key.strip()]] = number
        if "epsilon" not in found:
            raise UsageError(f"--attack {text!r} says no eps", hint=f"Give {FORM}")
        counts = {name: int(found.get(name, usual)) for name, usual in (("steps", 5), ("restarts", 1))}
        return Attack(found["epsilon"], found.get("alpha", found["epsilon"] / 4), **counts)

    def __str__(self) -> str:
        return f"eps={self.epsilon:.6g},step={self.alpha:.6g},steps={self.steps},restarts={self.restarts}"

    @property
    def label(self) -> str:
        """What rows are called: pgd-5@0.1, with restarts pgd-20x2@0.1, of steps not ε/4 pgd-5@0.1:0.05."""
        times = f"x{self.restarts}" if self.restarts > 1 else ""
        pace = "" if math.isclose(self.alpha, self.epsilon / 4) else f":{self.alpha:.6g}"
        return f"pgd-{self.steps}{times}@{self.epsilon:.6g}{pace}"

    def account(self) -> dict[str, Any]:
        return {"norm": "linf", **asdict(self)}

    @property
    def passes(self) -> int:
        """Forward passes that attack and measuring take beside those of measuring alone, about."""
        return self.restarts * (3 * self.steps + 1)


class Attacker:
    """An attack on the samples of one data set: how its pixels are normalised says how far they may move."""

    def __init__(self, attack: Attack, data: Any):
        if not isinstance(data, Data):
            raise UsageError(
                "an attack moves the pixels of a data set; a loader's batches do not say what a pixel is",
                hint="Give a built-in data set, npz:FILE or imagefolder:DIR",
            )
        if data.vocabulary is not None or data.normalization is None:
            raise DataError(f"{data.name} is text: an attack moves pixels")
        self.attack, self.normalization = attack, data.normalization

    def __call__(self, inputs: Any, targets: Any, loss: Loss, rng: torch.Generator) -> Tensor:
        """The inputs, each moved to where the loss is large; what no step makes larger may be smaller."""
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            raise DataError("an attack needs inputs that are one tensor of pixels")
        attack, (mean, std) = self.attack, self._channels(inputs)
        inputs = inputs.detach().clone()
        reach, step = attack.epsilon / std, attack.alpha / std
        lowest = torch.minimum(inputs, torch.maximum(inputs - reach, (0 - mean) / std))
        highest = torch.maximum(inputs, torch.minimum(inputs + reach, (1 - mean) / std))
        worst: Tensor = inputs
        most: Tensor | None = None
        for _ in range(attack.restarts):
            start = torch.rand(inputs.shape, generator=rng).to(inputs) * 2 - 1
            moved: Tensor = (inputs + reach * start).clamp(lowest, highest)
            for _ in range(attack.steps):
                moved.requires_grad_()
                with torch.enable_grad():
                    (slope,) = torch.autograd.grad(loss(moved, targets).sum(), moved)
                moved = (moved.detach() + step * slope.sign()).clamp(lowest, highest)
            if attack.restarts == 1:
                return moved
            with torch.no_grad():
                value = loss(moved, targets)
            worse = torch.ones_like(value, dtype=torch.bool) if most is None else value > most
            most = value if most is None else torch.where(worse, value, most)
            worst = (
                torch.where(worse.view(-1, *[1] * (inputs.ndim - 1)), moved, worst)
                if value.ndim
                else (moved if worse else worst)
            )
        return worst

    def _channels(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        both = (torch.tensor(v).view(shape) for v in (self.normalization.mean, self.normalization.std))
        mean, std = (values.to(inputs) for values in both)
        return mean, std


def each_loss(network: nn.Module, output: str | int | None = None) -> Loss:
    """The cross-entropy of every sample, in the mode that the network is in."""

    def loss(inputs: Any, targets: Any) -> Tensor:
        return F.cross_entropy(call(network, inputs, output=output).float(), targets, reduction="none")

    return loss


@contextmanager
def statistics_kept(network: nn.Module) -> Iterator[None]:
    """Buffers as they were, whatever forward passes do to them: an attack is no training."""
    kept = {name: buffer.clone() for name, buffer in network.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.copy_(kept[name])


@dataclass(frozen=True)
class Attacked:
    """The samples of a split, attacked as they are read, by the loss of `network` as it then is."""

    data: Any
    network: nn.Module
    attack: Attack
    output: str | int | None = None
    seed: int = 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        attacker, device = Attacker(self.attack, self.data), next(self.network.parameters()).device
        rng = generator(self.seed, "attack")
        for inputs, targets in self.data:
            with torch.inference_mode(False):
                given = fed(self.network, inputs, device).clone()
                labels = targets.to(device).clone()
                moved = attacker(given, labels, each_loss(self.network, self.output), rng)
            yield moved, targets


def attacked(data: Iterable[Any], network: nn.Module, attack: Attack, **more: Any) -> Attacked:
    """The samples under attack. Raises UsageError for a loader's batches."""
    Attacker(attack, data)
    return Attacked(data, network, attack, **more)
