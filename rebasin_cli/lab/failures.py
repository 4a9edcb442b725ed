"""Where is weight matching said to fail?

The paper lists what has no low barrier after matching: narrow networks, networks early in training, those
trained by SGD with a low learning rate, and those trained by Adam with a high one. Each is measured
beside the same networks without it. Both are trained on the same samples for as many steps.
"""

from __future__ import annotations

import torch

from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import ABOVE, Claim, bootstrap
from .engine.outcome import Line, Outcome, Panel, Table

PAPER = "Git Re-Basin A.1"
FASTER = "fewer steps: training takes most of the time"
SOURCE = "Git Re-Basin A.1"


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)
    usual = {"width": p.width, "steps": p.steps, "optimizer": "adam", "rate": p.adam}
    kinds = {
        "as usual": usual,
        "narrow": usual | {"width": max(1, p.width // 8)},
        "early in training": usual | {"steps": p.early},
        "Adam, high rate": usual | {"rate": p.adam_high},
        "SGD": usual | {"optimizer": "sgd", "rate": p.sgd},
        "SGD, low rate": usual | {"optimizer": "sgd", "rate": p.sgd_low},
    }

    def measure(kind: str) -> list:
        """For every pair: wm and naive barrier, loss and accuracy of the ends, on test data."""
        how = kinds[kind]
        layers = samples.layers(train, how["width"], p.depth, classes)
        told = {key: value for key, value in how.items() if key != "width"}
        told |= {"batch": p.batch, "momentum": 0.9, "generator": bench.generator(f"networks {kind}")}
        one, other = training.pairs(p.pairs, layers, train, **told)[how["steps"]]
        line = stacks.path(one, matching.aligned(one, other, seed=bench.seed), *test, p.points)
        naive = stacks.heights(stacks.path(one, other, *test, p.points).loss)[0]
        own = [(values[:, 0] + values[:, -1]) / 2 for values in (line.loss, line.accuracy)]
        return torch.stack([stacks.heights(line.loss)[0], naive, *own], 1).tolist()

    found = dict(zip(kinds, bench.each("training and matching", kinds, measure), strict=True))
    claims = []
    for kind, beside, says in (
        ("narrow", "as usual", "narrow networks have a higher barrier"),
        ("early in training", "as usual", "networks early in training have a higher barrier"),
        ("Adam, high rate", "as usual", "so have networks trained by Adam with a high learning rate"),
        ("SGD, low rate", "SGD", "so have networks trained by SGD with a low learning rate"),
    ):
        rows = [[a[0], b[0]] for a, b in zip(found[kind], found[beside], strict=True)]
        differs = bootstrap(rows, lambda means: means[..., 0] - means[..., 1], seed=bench.seed)
        about = f"wm barrier of '{kind}' minus '{beside}', test, {p.pairs} pairs each"
        claims.append(Claim(SOURCE, says, about, ABOVE, *differs))
    means = {kind: torch.tensor(rows, dtype=torch.float64).mean(0).tolist() for kind, rows in found.items()}
    head = ("", "wm barrier", "naive barrier", "ends' loss", "ends' accuracy")
    table = Table(f"Means of {p.pairs} pairs, test, {p.data}", head, [(k, *row) for k, row in means.items()])
    names = ", ".join(f"{at}: {kind}" for at, kind in enumerate(kinds))
    bars = Line("wm", list(range(len(kinds))), [row[0] for row in means.values()], bars=0.7)
    panel = Panel("barrier after matching", names, "nats", [bars], floor=0)
    note = "The list's other entry, VGG16 on MNIST, is not among these: it takes a GPU."
    return Outcome(claims, [table], [panel], [note])
