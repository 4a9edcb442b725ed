"""Does the barrier of convolutional networks peak over width, too?

Pairs of networks of two 3×3 convolutions, with w and 2w channels, each before a maximum of every 2×2 pixels,
and a linear layer are trained with plain SGD for every w and aligned by weight matching. The paper shows the
peak for convolutional networks on CIFAR-10 without giving their architecture: this one is ours.
"""

from __future__ import annotations

from typing import Any

import torch

from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import Outcome
from .engine.peaks import Sweep, peaks, shares

PAPER = "Permutation Invariance in LMC B.5"
FASTER = "fewer steps, and no wide networks: a step of twice as many channels costs up to four times as much"
WIDTH = "channels of the first convolution"


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples, images=True)
    splits = [split.some(p.measured, bench.generator("measured samples")) for split in (test, train)]

    def measure(width: int) -> list[Any]:
        """For every pair: naive and wm barrier and mean loss of the ends, on test and on training data."""
        draw = bench.generator(f"networks of {width}")
        start = stacks.of_shapes(2 * p.pairs, shapes(train, width, classes), draw, "kaiming")
        how = {"batch": p.batch, "rate": p.rate, "optimizer": "sgd", "generator": draw}
        ends = training.trained(start, *train, steps=p.steps, **how)[p.steps]
        return matching.barriers(*stacks.halved(ends), splits, p.points, seed=bench.seed).tolist()

    rows = bench.each("width", p.widths, measure)
    sweep = Sweep(p.data, p.widths, torch.tensor(rows, dtype=torch.float64).transpose(0, 1))
    claims, tables = sweep.claims(bench.seed, source=PAPER), [sweep.table(), peaks([sweep], bench.seed)]
    return Outcome(claims, tables, [sweep.panel(WIDTH), shares([sweep], WIDTH)])


def shapes(train: samples.Samples, width: int, classes: int) -> list[tuple[int, ...]]:
    """The weights' shapes for images (samples, channels, height, width)."""
    channels, height, across = train.inputs.shape[1:]
    left = (height // 4) * (across // 4)
    return [(width, channels, 3, 3), (2 * width, width, 3, 3), (classes, 2 * width * left)]
