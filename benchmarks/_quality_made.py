"""Networks of other tasks for `quality.py`, trained in plain loops: a regression and a segmentation.

"regression": an MLP 3×64 of the function of `regret.py`, four outputs of 20 numbers with noise, by squares;
in place of an accuracy it has the explained share of the variance. "segmentation": two convolutions down and
two up, with a skip connection, that tell of every pixel of a noisy MNIST image of 14×14 whether it is
background or part of which digit; cross-entropy and accuracy are of pixels, 11 classes. Both without norms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from _regret_cases import function, images
from repair import score
from torch import Tensor, nn
from torch.nn import functional as F

from rebasin_cli.datasets import Data, Samples

Splits = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
DIGIT = 0.3  # what is brighter is part of a digit
NOISE = 0.3


class Segmenter(nn.Module):
    """(N, 1, 14, 14) to logits (N, 11, 14, 14)."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.fine = nn.Conv2d(1, width, 3, padding=1)
        self.coarse = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(2 * width, 4 * width, 7)
        self.spread = nn.ConvTranspose2d(4 * width, 2 * width, 7)
        self.joined = nn.Conv2d(3 * width, 2 * width, 3, padding=1)
        self.head = nn.Conv2d(2 * width, 11, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.relu(self.fine(x))
        deep = torch.relu(self.deep(torch.relu(self.coarse(fine))))
        spread = F.interpolate(torch.relu(self.spread(deep)), scale_factor=2.0)
        logits: Tensor = self.head(torch.relu(self.joined(torch.cat([fine, spread], 1))))
        return logits


def perceptron() -> nn.Module:
    hidden = [layer for a in (20, 64, 64) for layer in (nn.Linear(a, 64), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(64, 4))


def explained(outputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Mean square, and the share of the variance of the targets that is explained."""
    lost = (outputs - targets).square().mean()
    return lost.item(), (1 - lost / (targets - targets.mean(0)).square().mean()).item()


def parts_of_digits() -> Splits:
    found = []
    for split in ("train", "test"):
        inputs, digits = images("mnist", split)
        low, high = inputs.min(), inputs.max()
        ink = (inputs - low) / (high - low)
        targets = torch.where(ink[:, 0] > DIGIT, digits[:, None, None], 10)
        noise = torch.randn(ink.shape, generator=torch.Generator().manual_seed(0))
        found.append((ink + NOISE * noise, targets))
    return found[0], found[1]


@dataclass(frozen=True)
class Task:
    """`rate`: of Adam, which falls to nothing by a cosine."""

    build: Callable[[], nn.Module]
    data: Callable[[], Splits]
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], tuple[float, float]]
    outputs: int
    epochs: int
    rate: float


TASKS = {
    "regression": Task(perceptron, function, F.mse_loss, explained, 4, 20, 2e-3),
    "segmentation": Task(Segmenter, parts_of_digits, F.cross_entropy, score, 11, 4, 2e-3),
}


@cache
def splits(task: str) -> tuple[Data, Data]:
    it = TASKS[task]
    train, test = it.data()
    first, second = (Samples(*part) for part in (train, test))
    return Data(task, "train", first, None, it.outputs), Data(task, "test", second, None, it.outputs)


@cache
def trained(task: str, seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network, and what it came to from this seed."""
    it = TASKS[task]
    torch.manual_seed(seed)
    network, order = it.build(), torch.Generator().manual_seed(seed)
    data = splits(task)[0].with_batch_size(50)
    optimizer = torch.optim.Adam(network.parameters(), it.rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, it.epochs)
    for _ in range(it.epochs):
        for inputs, targets in data.shuffled(order):
            optimizer.zero_grad()
            it.loss(network(inputs), targets).backward()
            optimizer.step()
        falling.step()
    network.eval()
    return network, {name: value.clone() for name, value in network.state_dict().items()}
