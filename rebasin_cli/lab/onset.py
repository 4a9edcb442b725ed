"""When in training do networks become connected?

Pairs are trained at a constant learning rate and kept after some epochs; at each of them both are matched
anew and the path is measured. At the start every network is at chance, so there is hardly a barrier to be
seen: it is shown as it is, and relative to what the ends have learnt. Beside it stands the permutation of the
last epoch, applied to the same networks as they were at every earlier one, the first weights among them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..types import Permutations
from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import BELOW, Line, Outcome, Panel, Table, mean

PAPER = "Git Re-Basin §5.2, Figure 3"
FASTER = "fewer epochs are kept: each costs a matching of every pair and two paths"
SOURCE = "Git Re-Basin Figure 3"
LEAST = 0.05  # nats below chance: what has learnt less has no barrier to speak of


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)
    looked_at = train.some(p.measured, bench.generator("measured samples"))
    an_epoch = training.steps_of(1, len(train.targets), p.batch)
    epochs = sorted(set(p.epochs))

    def everything(_: str) -> list[Any]:
        """For every epoch and pair: barrier (midpoint, chord), of accuracy, naive, and the ends' loss.

        Then, with the last permutation: its barrier, the accuracy in the middle; that without any.
        """
        layers = samples.layers(train, p.width, p.depth, classes)
        steps = {epoch * an_epoch for epoch in epochs}
        how = {"batch": p.batch, "rate": p.rate, "optimizer": p.optimizer, "keep": steps}
        how |= {"steps": max(1, max(steps)), "generator": bench.generator("networks")}
        kept = training.pairs(p.pairs, layers, train, **how)
        final = matching.permutations(*kept[epochs[-1] * an_epoch], seed=bench.seed)
        return [_measured(*kept[epoch * an_epoch], final) for epoch in epochs]

    def _measured(one: stacks.Stack, other: stacks.Stack, final: list[Permutations]) -> list[Any]:
        moved = matching.aligned(one, other, seed=bench.seed)
        line = stacks.path(one, moved, *looked_at, p.points)
        plain = stacks.path(one, other, *looked_at, p.points)
        late = stacks.path(one, matching.moved(other, final), *looked_at, p.points)
        naive, middle = stacks.heights(plain.loss)[0], p.points // 2
        more = [stacks.heights(late.loss)[0], late.accuracy[:, middle], plain.accuracy[:, middle]]
        accuracy = (line.accuracy[:, 0] + line.accuracy[:, -1]) / 2 - line.accuracy.amin(1)
        ends_loss = (line.loss[:, 0] + line.loss[:, -1]) / 2
        return torch.stack([*stacks.heights(line.loss), accuracy, naive, ends_loss, *more], 1).tolist()

    (rows,) = bench.each("training and matching", ["all epochs"], everything)
    figures = torch.tensor(rows, dtype=torch.float64)
    learnt = math.log(classes) - figures[:, :, 4]
    relative = torch.where(learnt > LEAST, figures[:, :, 0] / learnt.clamp_min(LEAST), torch.nan)
    means = figures.mean(1)
    body = [
        (epoch, *row[:2], None if part.isnan().any() else float(part.mean()), *row[2:])
        for epoch, row, part in zip(epochs, means.tolist(), relative, strict=True)
    ]
    head = (
        "epoch",
        "wm barrier",
        "wm chord",
        "barrier / learnt",
        "accuracy lost",
        "naive barrier",
        "ends' loss",
        "last permutation's barrier",
        "accuracy in its middle",
        "naive",
    )
    last, early = len(epochs) - 1, min(range(len(epochs)), key=lambda k: abs(epochs[k] - p.early))
    worst = int(means[:, 0].argmax())
    about = f"wm barrier at epoch {epochs[last]} minus at epoch"
    claims = [
        mean(
            SOURCE,
            "networks become connected in training: late barriers are lower than early ones",
            f"{about} {epochs[early]}, train, {p.pairs} pairs",
            BELOW,
            (figures[last, :, 0] - figures[early, :, 0]).tolist(),
        ),
        mean(
            SOURCE,
            "and lower than the highest of all epochs",
            f"{about} {epochs[worst]}, train",
            BELOW,
            (figures[last, :, 0] - figures[worst, :, 0]).tolist(),
        ),
        mean(
            "a control of ours",
            "at every epoch kept after the first, matching helps",
            "wm minus naive barrier, mean over those epochs",
            BELOW,
            (figures[1:, :, 0] - figures[1:, :, 3]).mean(0).tolist(),
        ),
        mean(
            "Git Re-Basin §5.2",
            "the permutation of the end connects networks during training, too",
            "its barrier minus the naive one, mean over the epochs between",
            BELOW,
            (figures[1:-1, :, 5] - figures[1:-1, :, 3]).mean(0).tolist(),
        ),
        mean(
            "a control of ours",
            "one that is found anew at each of these epochs is no worse",
            "wm barrier minus that of the last permutation, mean over the epochs between",
            BELOW,
            (figures[1:-1, :, 0] - figures[1:-1, :, 5]).mean(0).tolist(),
        ),
        mean(
            "Git Re-Basin §5.2",
            "applied to the first weights, it gives networks that know no more",
            "accuracy in the middle minus that without permutation, epoch 0",
            (-0.05, 0.05),
            (figures[0, :, 6] - figures[0, :, 7]).tolist(),
        ),
    ]
    at = [max(epoch, 0.5) for epoch in epochs]
    shares = [Line("barrier / learnt", at, relative.mean(1).tolist())]
    shares.append(Line("accuracy lost", at, means[:, 2].tolist()))
    panels = [
        Panel(
            "barrier, training data",
            "epoch (0 is drawn at ½)",
            "nats",
            [
                Line("wm", at, means[:, 0].tolist()),
                Line("the last permutation", at, means[:, 5].tolist()),
                Line("naive", at, means[:, 3].tolist()),
            ],
            "x",
            floor=0,
        ),
        Panel("wm", "epoch", "share", shares, "x", floor=0),
    ]
    note = "At epoch 0 both ends are at chance: a barrier of nothing there says nothing."
    return Outcome(claims, [Table(f"Means of {p.pairs} pairs, {p.data}", head, body)], panels, [note])
