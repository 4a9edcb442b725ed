"""Two perfect classifiers that no permutation connects.

Two networks 2-2-2-1 with ReLU classify every point of a square right, by whether x1 < 0 and x2 > 0: both
compute -relu(x1) - relu(-x2), and positive is an output of 0. On the straight line between them some
network knows nothing, whichever of the four permutations is applied before. Ties decide all: everything is
float64, and -1e-12 counts as 0.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from .engine.bench import Bench
from .engine.claims import Line, Outcome, Panel, Table, exact

PAPER = "Git Re-Basin §4 and A.3"
FASTER = "nothing: it takes two minutes at most"

ZERO = 1e-12
LEAK = 0.01  # of the authors' own program, which uses PReLU where the paper says ReLU
SOURCE = "Git Re-Basin A.3"

Network = tuple[Tensor, Tensor, Tensor, Tensor]  # weights and biases of both hidden layers


def networks() -> tuple[Network, Network]:
    """A and B: the two hidden layers of each; the output is minus the sum of the last."""

    def made(*rows: list[Any]) -> Network:
        w1, b1, w2, b2 = (torch.tensor(row, dtype=torch.float64) for row in rows)
        return w1, b1, w2, b2

    # A bends x1 in its second layer and x2 in its first, B the other way round.
    a = made([[-1, 0], [0, -1]], [1, 0], [[-1, 0], [0, 1]], [1, 0])
    b = made([[1, 0], [0, 1]], [0, 1], [[1, 0], [0, -1]], [0, 1])
    return a, b


def permutations() -> list[tuple[Tensor, Tensor]]:
    """All four: an order of the first hidden layer's units, and one of the second's."""
    orders = [torch.tensor([0, 1]), torch.tensor([1, 0])]
    return list(itertools.product(orders, orders))


def permuted(network: Network, orders: tuple[Tensor, Tensor]) -> Network:
    (w1, b1, w2, b2), (first, second) = network, orders
    return w1[first], b1[first], w2[second][:, first], b2[second]


def outputs(network: Network, points: Tensor, leak: float = 0.0) -> Tensor:
    w1, b1, w2, b2 = network
    hidden = torch.nn.functional.leaky_relu(points @ w1.T + b1, leak)
    return -torch.nn.functional.leaky_relu(hidden @ w2.T + b2, leak).sum(1)


def grid(cells: int) -> Tensor:
    """The middles of cells of the square from -1 to 1, (cells², 2)."""
    middles = (torch.arange(cells, dtype=torch.float64) + 0.5) * (2 / cells) - 1
    return torch.cartesian_prod(middles, middles)


def accuracy(network: Network, points: Tensor, leak: float = 0.0) -> float:
    labels = (points[:, 0] < 0) & (points[:, 1] > 0)
    return ((outputs(network, points, leak) >= -ZERO) == labels).double().mean().item()


def _mixed(a: Network, b: Network, t: Tensor) -> Network:
    w1, b1, w2, b2 = (torch.lerp(x, y, t) for x, y in zip(a, b, strict=True))
    return w1, b1, w2, b2


def run(bench: Bench) -> Outcome:
    points, (a, b) = grid(bench.p.cells), networks()
    lambdas = torch.linspace(0, 1, bench.p.lambdas, dtype=torch.float64)

    def path(number: int) -> list[float]:
        other = permuted(b, permutations()[number])
        return [accuracy(_mixed(a, other, t), points) for t in lambdas]

    paths = bench.each("permutation", range(4), path)
    lowest = [min(found) for found in paths]
    ends = min(found[k] for found in paths for k in (0, -1))
    leaky = min(accuracy(network, points, LEAK) for network in (a, b))
    claims = [
        exact(
            SOURCE,
            "both networks classify all points",
            "lowest accuracy of A and of the four πB",
            (1, 1),
            ends,
        ),
        exact(
            SOURCE,
            "no permutation connects them: accuracy falls on every path",
            "the best of the four paths' lowest accuracies",
            (0, 0.99),
            max(lowest),
        ),
        exact(
            "the authors' program",
            "the counterexample holds with PReLU(0.01), too: both networks classify all points",
            "lowest accuracy of A and B with that slope",
            (1, 1),
            leaky,
        ),
    ]
    names = [f"({p[0].tolist()}, {p[1].tolist()})" for p in permutations()]
    rows = [(name, found[0], found[-1], low) for name, found, low in zip(names, paths, lowest, strict=True)]
    columns = ("π (first layer, second layer)", "accuracy of A", "of πB", "lowest between")
    lines = [Line(n, lambdas.tolist(), found) for n, found in zip(names, paths, strict=True)]
    panel = Panel("accuracy on the way from A to πB", "λ", "accuracy, 0–1", lines)
    note = "Three quarters of the square are negative: 0.75 is what a network that knows nothing reaches."
    return Outcome(claims, [Table("The four paths", columns, rows)], [panel], [note])
