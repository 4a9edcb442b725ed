"""Does the barrier of convolutional networks peak over width, too?

Pairs of networks of two 3×3 convolutions, with w and 2w channels, each before a maximum of every 2×2 pixels,
and a linear layer are trained with plain SGD for every w and aligned by weight matching. The paper shows the
peak for convolutional networks on CIFAR-10 without giving their architecture: this one is ours.
"""

from __future__ import annotations

import torch

from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.outcome import Line, Outcome, Panel, Table
from .engine.peaks import HEAD, claims_of, table

PAPER = "Permutation Invariance in LMC B.5"
FASTER = "fewer steps, and no wide networks: a step of twice as many channels costs up to four times as much"
SOURCE = "Permutation Invariance in LMC B.5"


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples, images=True)
    splits = [split.some(p.measured, bench.generator("measured samples")) for split in (test, train)]

    def measure(width: int) -> list:
        """For every pair: naive and wm barrier and mean loss of the ends, on test and on training data."""
        draw = bench.generator(f"networks of {width}")
        start = stacks.of_shapes(2 * p.pairs, shapes(train, width, classes), draw, "kaiming")
        how = {"batch": p.batch, "rate": p.rate, "optimizer": "sgd", "generator": draw}
        ends = training.trained(start, *train, steps=p.steps, **how)[p.steps]
        return matching.barriers(*stacks.halved(ends), splits, p.points, seed=bench.seed).tolist()

    rows = bench.each("width", p.widths, measure)
    figures = torch.tensor(rows, dtype=torch.float64).transpose(0, 1)  # (pairs, widths, columns)
    means, claims = figures.mean(0), []
    for at, split in ((0, "test"), (3, "train")):
        claims += claims_of(
            p.widths, figures[..., at : at + 2], f"{split}, {p.data}", bench.seed, source=SOURCE
        )
    body = [(w, *row) for w, row in zip(p.widths, means.tolist(), strict=True)]
    tables = [
        Table(f"Mean barriers of {p.pairs} pairs, {p.data}", HEAD, body),
        table(p.widths, {p.data: figures[..., 1]}, bench.seed),
    ]
    lines = [Line(name, p.widths, means[:, k].tolist()) for k, name in enumerate(("naive", "wm"))]
    share = [Line("wm / naive", p.widths, (means[:, 1] / means[:, 0]).tolist())]
    panels = [
        Panel(f"test, {p.data}", "channels of the first convolution", "barrier, nats", lines, "xy"),
        Panel("wm / naive, test", "channels of the first convolution", "", share, "x", floor=0),
    ]
    return Outcome(claims, tables, panels, [])


def shapes(train: samples.Samples, width: int, classes: int) -> list[tuple[int, ...]]:
    """The weights' shapes for images (samples, channels, height, width)."""
    channels, height, across = train.inputs.shape[1:]
    left = (height // 4) * (across // 4)
    return [(width, channels, 3, 3), (2 * width, width, 3, 3), (classes, 2 * width * left)]
