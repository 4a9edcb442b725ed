"""Distillation by the mean square of what outputs lack, against the divergence of distributions.

Two networks on digits, two seeds each, merged by weights and distilled by both recipes: the test loss and
accuracy of the merge, in nats and 0–1, and the processor seconds of one thread.

    python benchmarks/distilled.py
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli.datasets import open_data
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.repair import ensemble
from rebasin_cli.repair.distilling import distill

SQUARE = ensemble.Ensemble.loss
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


def divergence(self, network, inputs, targets):
    """KL of the distribution of the mean logits from the network's."""
    (given,), (wanted,) = self._answers(network, inputs), targets
    return F.kl_div(given.log_softmax(1), wanted.log_softmax(1), reduction="batchmean", log_target=True)


def mlp():
    inner = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *inner, nn.Linear(64, 10))


def cnn():
    layers = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24 * 16, 10))


def trained(make, seed):
    torch.manual_seed(seed)
    network = make()
    learner = torch.optim.Adam(network.parameters(), 3e-3)
    data = open_data("digits", "train", batch_size=64)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(15):
        for inputs, targets in data.shuffled(draw):
            learner.zero_grad()
            F.cross_entropy(network(inputs), targets).backward()
            learner.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def main(folder="/tmp"):
    torch.set_num_threads(1)
    train, test = (open_data("digits", split, batch_size=100) for split in ("train", "test"))
    print("| network | seeds | ends | merged | mean square | divergence |\n|---|---|---|---|---|---|")
    for make, text in ((mlp, MLP), (cnn, CNN)):
        path = f"{folder}/{make.__name__}.yaml"
        with open(path, "w") as file:
            file.write(text)
        for seed in (0, 2, 4):
            a, b = trained(make, seed), trained(make, seed + 1)
            aligned = rebasin_cli.align(a, b, path).models
            mean = {name: (aligned[0][name] + aligned[1][name]) / 2 for name in a}
            told = []
            for tensors in (a, b, mean):
                network = make()
                network.load_state_dict(tensors)
                found = evaluate(network, test)
                told.append(f"{found.loss:.4f} {found.accuracy:.4f}")
            cells = [f"{told[0]}, {told[1]}", told[2]]
            for loss in (SQUARE, divergence):
                ensemble.Ensemble.loss = loss
                network = make()
                network.load_state_dict(mean)
                began = time.process_time()
                distill(network, [dict(aligned[0]), dict(aligned[1])], train)
                took = time.process_time() - began
                found = evaluate(network, test)
                cells.append(f"{found.loss:.4f} {found.accuracy:.4f} ({took:.1f} s)")
            print(f"| {make.__name__} | {seed}, {seed + 1} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
