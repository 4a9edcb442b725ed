"""Do wide models merge without loss, however many there are?

The same number of models of every width are matched together by three methods and averaged. The loss of the
mean over the models' own is said to go to 0 with width, whatever the method.
"""

from __future__ import annotations

from typing import Any

import torch

from ..datasets import open_data
from ..nets.mlp import MLP
from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import BELOW, Line, Outcome, Panel, Table, mean

PAPER = "STE-MM §5.3, Figure 5"
FASTER = "the widest are left out: matching them takes most of the time"
SOURCE = "STE-MM §5.3, Figure 5"

METHODS = ("merge-many", "universe", "ste-mm")
SPLITS = ("test", "train")


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)
    batches = open_data(p.data, "train", root=bench.root, limit=p.samples or None).with_batch_size(p.step)
    widths = sorted(set(p.widths))

    def measure(width: int) -> list[Any]:
        """For every trial and method, naive last, the gap on test and training data."""
        found = []
        for number in range(p.trials):
            generator = bench.generator(f"networks {number} of width {width}")
            layers = samples.layers(train, width, p.depth, classes)
            start = stacks.fresh(p.models, layers, generator)
            steps = training.steps_of(p.epochs, len(train.targets), p.batch)
            how = {"batch": p.batch, "rate": p.rate, "generator": generator}
            ends = training.trained(start, *train, steps=steps, **how)[steps]
            moved = []
            for method in METHODS:
                evidence = {"network": MLP(layers), "data": batches} if method == "ste-mm" else {}
                match = matching.by(method, p.passes)
                moved.append(matching.together(ends, match, seed=number, **evidence))
            rows = []
            for stack in (*moved, ends):
                merged = stacks.mean(stack)
                rows.append(
                    [
                        float(
                            stacks.measured(merged, *data).loss[0] - stacks.measured(ends, *data).loss.mean()
                        )
                        for data in (test, train)
                    ]
                )
            found.append(rows)
        return found

    rows = bench.each("training and matching, width", widths, measure)
    gaps = torch.tensor(rows, dtype=torch.float64)  # (widths, trials, methods, splits)
    claims = []
    about = f"|gap| at width {widths[-1]} minus at {widths[0]}, {p.models} models, {p.trials} trials"
    for k, method in enumerate(METHODS):
        for at, split in enumerate(SPLITS):
            sizes = gaps[:, :, k, at].abs()
            says = f"the loss that merging adds by {method} falls with width"
            claims.append(mean(SOURCE, says, f"{about}, {split}", BELOW, (sizes[-1] - sizes[0]).tolist()))
    names = (*METHODS, "naive")
    means = gaps.mean(1)
    head = ("width", *(f"{name}, {split}" for split in SPLITS for name in names))
    body = [(w, *row.T.flatten().tolist()) for w, row in zip(widths, means, strict=True)]
    title = f"Loss of the mean of {p.models} models over theirs, {p.trials} trials, {p.data}"
    lines = [Line(name, widths, means[:, k, 0].tolist()) for k, name in enumerate(METHODS)]
    naive = Line("naive", widths, means[:, len(METHODS), 0].tolist())
    panels = [
        Panel("test loss over the models'", "width", "nats", lines, "x"),
        Panel("and of the naive mean", "width", "nats", [*lines, naive], "x"),
    ]
    return Outcome(claims, [Table(title, head, body)], panels, [])
