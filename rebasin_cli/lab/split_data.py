"""Can models that saw different data be merged?

A is trained on a fifth of the samples of the first half of the classes and four fifths of the second
half's, B on the rest. Their merge is measured on all test data, beside the naive mean, the ensemble of
their logits, and a model of all data.
"""

from __future__ import annotations

from typing import Any

import torch

from ..datasets.portions import ClassSplit
from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import BELOW, Line, Outcome, Panel, Table, mean

PAPER = "Git Re-Basin §5.4, Figures 5, 9 and 10"
FASTER = "fewer epochs: training takes most of the time"
SOURCE = "Git Re-Basin §5.4"

ROWS = ("A", "B", "naive", "wm", "ensemble of logits", "all data")
FIGURES = ("loss", "accuracy", "ECE")


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)
    layers = samples.layers(train, p.width, p.depth, classes)

    def pair(number: int) -> list[Any]:
        """The figures of `ROWS`, and the test losses along the paths."""
        generator = bench.generator(f"pair {number}")
        split = ClassSplit(classes // 2, p.share, 1 - p.share)
        mine, others = split.parts(train.targets, classes, generator)
        ends = []
        for chosen in (mine, others, torch.arange(len(train.targets))):
            start = stacks.fresh(1, layers, generator)
            steps = training.steps_of(p.epochs, len(chosen), p.batch)
            how = {"batch": p.batch, "rate": p.rate, "chosen": chosen[None]}
            ends.append(training.trained(start, *train, steps=steps, generator=generator, **how)[steps])
        a, b, full = ends
        moved = matching.aligned(a, b, seed=bench.seed)
        every = [a, b, stacks.mixed(a, b, 0.5), stacks.mixed(a, moved, 0.5)]
        with torch.inference_mode():
            logits = [stacks.outputs(stack, test.inputs)[0].double() for stack in every]
            logits += [(logits[0] + logits[1]) / 2, stacks.outputs(full, test.inputs)[0].double()]
        figures = [_figures(each, test.targets) for each in logits]
        paths = [stacks.path(a, other, *test, p.points).loss[0].tolist() for other in (b, moved)]
        return [figures, paths]

    found = bench.each("pair", range(p.pairs), pair)
    figures = torch.tensor([row[0] for row in found], dtype=torch.float64)  # (pairs, rows, figures)
    paths = torch.tensor([row[1] for row in found], dtype=torch.float64)
    means = figures.mean(0)
    a, b, naive, wm, ensemble, full = (figures[:, k] for k in range(len(ROWS)))
    best = torch.minimum(a, b)

    claims: list[Any] = []
    for says, about, values in (
        (
            "the merge has a lower loss than both models",
            "its loss minus the lower one",
            wm[:, 0] - best[:, 0],
        ),
        ("matching is much better than the naive mean", "wm minus naive loss", wm[:, 0] - naive[:, 0]),
        ("the merge is less accurate than the ensemble", "difference", wm[:, 1] - ensemble[:, 1]),
        (
            "the ensemble is no better than one of all data",
            "accuracy, difference",
            ensemble[:, 1] - full[:, 1],
        ),
        ("the merge is better calibrated than both", "its ECE minus the lower one", wm[:, 2] - best[:, 2]),
    ):
        claims.append(mean(SOURCE, says, f"{about}, {p.pairs} pairs, test", BELOW, values.tolist()))
    table = Table(
        f"Means of {p.pairs} pairs, test, {p.data}",
        ("", *FIGURES),
        [(name, *row) for name, row in zip(ROWS, means.tolist(), strict=True)],
    )
    at = torch.linspace(0, 1, p.points).tolist()
    lines = [Line(name, at, paths[:, k].mean(0).tolist()) for k, name in enumerate(("naive", "wm"))]
    panel = Panel("mean test loss from A to B", "λ", "nats", lines, floor=0)
    note = (
        "The paper's own are ResNet20 with LayerNorm on CIFAR-100: `rebasin train resnet20 --data cifar100 "
        "--norm layer --classes-split 50:0.2,0.8 --part a` and `--part b` make such models, and `rebasin "
        "barrier` measures them."
    )
    return Outcome(claims, [table], [panel], [note])


def _figures(logits: torch.Tensor, targets: torch.Tensor) -> list[float]:
    loss = stacks.cross_entropies(logits[None], targets)
    (error,) = stacks.calibration(logits[None], targets, 15)
    return [float(loss), float((logits.argmax(1) == targets).double().mean()), error["ece"]]
