"""What a fine-tune is worth on another base: carried over, merged, refitted; beside what 100 labels give.

    python benchmarks/rebase.py --data mnist --pairs a.safetensors:b.safetensors …
        [--cache FILE] [--tasks NAME …] [--tuned N] [--tested N]

A and B learned one task from other seeds. A1 is A tuned on the same images turned by 45°, mirrored, upside
down, or negative (10,000 of them, two epochs of Adam, 1e-3, batches of 50). Wanted is B tuned without the
labels of that task. Each row has test accuracy on the new task and on the old one, means over pairs with 95 %
intervals by Student's t. Alignments are by `wm`, which sees no data. Refits see 1,000 inputs of the new task
without labels, and so does a reset of running statistics, which networks with BatchNorm need in every row but
the first two. "100 labels" is B tuned on 100 labelled images of the new task, for 20 epochs, and the refitted
merge tuned so. The adapter is of rank 8, of every matrix and kernel of A, trained as A1 is. What is in
--cache is not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line
from repair import Pair, interval, score
from torch import Tensor
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.datasets import UNIT, Data, Samples
from rebasin_cli.networks.forward import call
from rebasin_cli.symmetry import factors as low_rank
from rebasin_cli.symmetry.elements import Elements
from rebasin_cli.symmetry.folds import Folds
from rebasin_cli.symmetry.permutation import permuted

UNLABELLED, LABELS, BATCH, RANK = 1_000, 100, 50, 8
Model = Mapping[str, Tensor]


def turned(x: Tensor) -> Tensor:
    sine = math.sqrt(0.5)
    angle = torch.tensor([[sine, -sine, 0.0], [sine, sine, 0.0]]).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(angle, list(x.shape), align_corners=False), align_corners=False)


TASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned by 45°": turned,
    "mirrored": lambda x: x.flip(-1),
    "upside down": lambda x: x.flip(-2),
    "negative": lambda x: x.max() + x.min() - x,
}


class Carried(Pair):
    """A pair of bases and one new task."""

    def __init__(self, files: str, data: str, task: str, tuned: int, tested: int):
        super().__init__(files, data, "cpu")
        self.images = tuned
        self.test = self.test.subset(min(tested, self.test.samples), 0)
        self.new, self.new_test = (self.made(split, TASKS[task]) for split in (self.train, self.test))
        self.reset = "reset" if networks.has_running_statistics(self.network) else "none"
        self.inputs = self.new.subset(UNLABELLED, 1).with_batch_size(250)

    def made(self, data: Data, task: Callable[[Tensor], Tensor]) -> Data:
        some = data.subset(min(2 * self.images, data.samples), 3) if data.split == "train" else data
        inputs, targets = (torch.cat(parts) for parts in zip(*some, strict=True))
        return Data("new", data.split, Samples(task(inputs), targets), UNIT, data.classes)

    def tuned(self, model: Model, images: int, epochs: int) -> Model:
        network = networks.load(self.network, model)
        network.requires_grad_(True).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        self.learn(optimizer, images, epochs, lambda inputs: call(network, inputs))
        return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}

    def adapted(self, model: Model) -> dict[str, Tensor]:
        """An adapter of every matrix and kernel: `X.B` (m, r), first zero, and `X.A` (r, n, …)."""
        network = networks.load(self.network, model)
        network.requires_grad_(False).train()
        rng, factors = torch.Generator().manual_seed(0), {}
        for name, weight in network.named_parameters():
            if weight.ndim > 1:
                bound = weight[0].numel() ** -0.5
                factors[f"{name}.A"] = (torch.rand(RANK, *weight.shape[1:], generator=rng) * 2 - 1) * bound
                factors[f"{name}.B"] = torch.zeros(len(weight), RANK)
        for factor in factors.values():
            factor.requires_grad_()
        own = {name: weight.detach().clone() for name, weight in network.named_parameters()}
        self.learn(
            torch.optim.Adam(factors.values(), lr=1e-3),
            self.images,
            2,
            lambda inputs: torch.func.functional_call(network, added(own, factors), inputs),
        )
        return {name: factor.detach() for name, factor in factors.items()}

    def learn(
        self,
        optimizer: torch.optim.Optimizer,
        images: int,
        epochs: int,
        logits: Callable[[Tensor], Tensor],
    ) -> None:
        data = self.new.subset(images, 2).with_batch_size(min(BATCH, images // 5))
        order = torch.Generator().manual_seed(0)
        for _ in range(epochs):
            for inputs, targets in data.shuffled(order):
                optimizer.zero_grad()
                F.cross_entropy(logits(inputs), targets).backward()
                optimizer.step()

    def told(self, model: Model) -> tuple[float, float]:
        """Accuracy on the new task and on the old one."""
        new, old = (score(*self.logits(model, data))[1] for data in (self.new_test, self.test))
        return new, old

    def combined(self, models: list[Model], repair: str, weights: list[float] | None = None) -> Model:
        return rebasin_cli.merge(
            models,
            self.fitted,
            method="none",
            weights=weights,
            repair_with=repair,
            network=self.network,
            train=self.inputs,
        ).tensors

    def rows(self) -> Iterator[tuple[str, Model]]:
        a, b = self.models
        a1 = self.tuned(a, self.images, 2)
        onto_b = rebasin_cli.align(b, a, self.fitted, method="wm").permutations[0]
        a1_onto_b = rebasin_cli.align(b, a1, self.fitted, method="wm").permutations[0]
        a_there, a1_there = (dict(permuted(model, self.fitted, onto_b)) for model in (a, a1))
        beside = dict(permuted(a1, self.fitted, a1_onto_b))
        yield "B alone", b
        yield "A1, on its own base", a1
        sums = [1.0, 1.0, -1.0]
        yield "B + A1 − A, not aligned", self.combined([b, a1, a], self.reset, sums)
        yield "B + A1 − A, aligned", self.combined([b, a1_there, a_there], self.reset, sums)
        yield "mean of B and A1, not aligned", self.combined([b, a1], self.reset)
        yield "mean of B and A1, aligned", self.combined([b, beside], self.reset)
        yield "mean of B and A1, not aligned, refit", self.combined([b, a1], "refit")
        refitted = self.combined([b, beside], "refit")
        yield "mean of B and A1, aligned, refit", refitted
        yield "B tuned on 100 labels", self.tuned(b, LABELS, 20)
        yield "mean of B and A1, aligned, refit, tuned on 100 labels", self.tuned(refitted, LABELS, 20)
        factors = self.adapted(a)
        weights = [name.removesuffix(".A") for name in factors if name.endswith(".A")]
        pairs = {name: low_rank.Pair(name, f"{name}.B", f"{name}.A") for name in weights}
        moved = low_rank.turned_factors(factors, pairs, a, self.fitted, Elements(onto_b), Folds(), {})
        # the statistics are those of the sum: of a reset, where there are any
        yield "A and its adapter", self.combined([a, added(a, factors)], self.reset, [0.0, 1.0])
        yield "B and A's adapter, not moved", self.combined([b, added(b, factors)], self.reset, [0.0, 1.0])
        yield "B and A's adapter, moved", self.combined([b, added(b, moved)], self.reset, [0.0, 1.0])


def added(model: Model, factors: Model) -> Model:
    """A model with the products of an adapter in it."""
    names = {name.removesuffix(".A") for name in factors if name.endswith(".A")}
    products = {name: factors[f"{name}.B"] @ factors[f"{name}.A"].flatten(1) for name in names}
    return {
        name: tensor + products[name].reshape(tensor.shape) if name in names else tensor
        for name, tensor in model.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--pairs", nargs="+", required=True, metavar="A:B")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--tuned", type=int, default=10_000, help="images that A1 is tuned on")
    parser.add_argument("--tested", type=int, default=10_000, help="test samples")
    parser.add_argument("--cache", type=Path, help="a JSON file with what was measured before")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cache: dict[str, Any] = (
        json.loads(asked.cache.read_text()) if asked.cache and asked.cache.exists() else {}
    )
    print(environment(), flush=True)
    for task in asked.tasks:
        for files in asked.pairs:
            if (key := f"{asked.data} {task} {files}") not in cache:
                carried = Carried(files, asked.data, task, asked.tuned, asked.tested)
                cache[key] = {row: carried.told(model) for row, model in carried.rows()}
                print(key, cache[key], file=sys.stderr, flush=True)
                if asked.cache:
                    asked.cache.write_text(json.dumps(cache, indent=1))
    line("date", "task", "row", "new task", "old task")
    print("|" + "---|" * 5)
    for task in asked.tasks:
        found = [cache[f"{asked.data} {task} {files}"] for files in asked.pairs]
        for row in found[0]:
            columns = zip(*(each[row] for each in found), strict=True)
            line(date.today(), task, row, *(interval(column, ".3f", ".3f") for column in columns))


if __name__ == "__main__":
    main()
