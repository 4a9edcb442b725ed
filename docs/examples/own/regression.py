"""Regression on tabular data: one number out, a mean squared error a sample, and R² over the whole set."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn


def net():
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def loader(split):
    inputs, targets = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    inputs, targets = 20 * inputs, (targets[:, None] - 152) / 77
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    chosen = order[:342] if split == "train" else order[342:]
    return list(zip(inputs[chosen].split(32), targets[chosen].split(32), strict=True))


def loss(outputs, targets):
    return (outputs - targets).square().mean(1)  # one number a sample


loss.name, loss.unit = "squared error", "σ²"


class R2:
    name, range = "R²", (-1, 1)

    def __init__(self):
        self.reset()

    def reset(self):
        self.outputs, self.targets = [], []

    def update(self, outputs, targets):
        self.outputs.append(outputs)
        self.targets.append(targets)

    def compute(self):
        outputs, targets = torch.cat(self.outputs), torch.cat(self.targets)
        return 1 - (outputs - targets).square().sum() / (targets - targets.mean()).square().sum()


if __name__ == "__main__":
    from training import train

    train(net, loader, loss, epochs=30)
