"""Distillation by the mean square of what outputs lack, by the divergence of distributions, and by both.

Pairs are merged by weights, refitted and distilled on up to 10,000 training samples, by each recipe: the
test loss of the merge in nats, its accuracy, 0–1, and the processor seconds of one thread; "refit" where
training came no nearer than that. Without arguments three pairs of four networks are trained: two by Adam on
digits, one by SGD without momentum on digits, and one on text, whose logits are (N, T, characters).

    python benchmarks/distilled.py [--data mnist a.safetensors:b.safetensors …]
"""

from __future__ import annotations

import argparse
import tempfile
import time

import torch
from repair import Pair
from torch import nn
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.datasets import open_data
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.repair import Repairs, ensemble
from rebasin_cli.repair.options import DISTILL_SAMPLES, REFIT_BATCH

MLP = """tensors:
  1.weight: "a ."
  1.bias: "a"
  3.weight: "b a"
  3.bias: "b"
  5.weight: ". b"
  5.bias: "."
"""
CNN = """tensors:
  0.weight: "a . . ."
  0.bias: "a"
  2.weight: "b a . ."
  2.bias: "b"
  5.weight: ". (b 16)"
  5.bias: "."
"""
TEXT = """tensors:
  embed.weight: ". e"
  near.weight: "c e ."
  near.bias: "c"
  inner.weight: "h c"
  inner.bias: "h"
  head.weight: ". h"
  head.bias: "."
"""


class Text(nn.Module):
    """The next character by the last eight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(70, 24)
        self.near, self.inner, self.head = nn.Conv1d(24, 64, 8), nn.Linear(64, 64), nn.Linear(64, 70)

    def forward(self, text):
        seen = self.near(F.pad(self.embed(text).transpose(1, 2), (7, 0))).relu().transpose(1, 2)
        return self.head(self.inner(seen).relu())


LACKING = ensemble.Ensemble._lacking
RECIPES = {
    "mean square": lambda lacking: lacking[:1],
    "divergence": lambda lacking: lacking[-1:],
    "both": lambda lacking: lacking,
}


def mlp():
    inner = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *inner, nn.Linear(64, 10))


def cnn():
    layers = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24 * 16, 10))


def adam(network):
    return torch.optim.Adam(network.parameters(), 3e-3)


def sgd(network):
    return torch.optim.SGD(network.parameters(), 0.1)


def trained(make, optimizer, data, seed):
    torch.manual_seed(seed)
    network = make()
    learner = optimizer(network)
    data = open_data(data, "train", limit=1600, batch_size=64)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(15):
        for inputs, targets in data.shuffled(draw):
            learner.zero_grad()
            outputs = network(inputs)
            F.cross_entropy(outputs.flatten(0, -2), targets.flatten()).backward()
            learner.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def row(name, network, models, spec, train, test):
    """What both recipes make of the mean of two models."""
    aligned = [dict(model) for model in rebasin_cli.align(*models, spec).models]
    mean = rebasin_cli.average(aligned)
    cells = [name]
    for tensors in (*models, mean):
        found = evaluate(networks.load(network, tensors), test)
        cells.append(f"{found.loss:.4f} {found.accuracy:.4f}")
    for recipe in RECIPES.values():
        ensemble.Ensemble._lacking = lambda *asked, recipe=recipe: recipe(LACKING(*asked))
        networks.load(network, mean)
        began = time.process_time()
        done = Repairs("distill", aligned, train).apply(network, [0.5, 0.5])
        took = time.process_time() - began
        found = evaluate(network, test)
        kept = "" if done.method == "distill" else ", refit"
        cells.append(f"{found.loss:.4f} {found.accuracy:.4f} ({took:.1f} s{kept})")
    print(f"| {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pairs", nargs="*")
    parser.add_argument("--data", default="digits")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| pair | first | second | merged | {' | '.join(RECIPES)} |\n|---|---|---|---|---|---|---|")
    for pair in asked.pairs:
        its = Pair(pair, asked.data, "cpu")
        train = its.train.subset(DISTILL_SAMPLES, 0).with_batch_size(REFIT_BATCH)
        row(its.name, its.network, its.models, its.fitted, train, its.test)
    if asked.pairs:
        return
    for make, text, optimizer, data in (
        (mlp, MLP, adam, "digits"),
        (cnn, CNN, adam, "digits"),
        (cnn, CNN, sgd, "digits"),
        (Text, TEXT, adam, "alice"),
    ):
        train, test = (
            open_data(data, split, limit=1600, batch_size=REFIT_BATCH if split == "train" else 100)
            for split in ("train", "test")
        )
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            for seed in (0, 2, 4):
                models = [trained(make, optimizer, data, number) for number in (seed, seed + 1)]
                name = f"{make.__name__}, {optimizer.__name__} {seed}, {seed + 1}"
                row(name, make(), models, file.name, train, test)


if __name__ == "__main__":
    main()
