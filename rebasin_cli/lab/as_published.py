"""What do our changes to STE-MM give?

The algorithm as it is published matches every model to its dummy from the identity to convergence in each
step, and takes the last permutations. Ours goes on from the permutations of the step before, starts from
weight matching, and keeps what was best on held-out training samples. All are given the same models, beside
two methods without data.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..datasets import open_data
from ..matchers import merge_many, ste_mm
from ..nets.mlp import MLP
from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import BELOW, Line, Outcome, Panel, Table, mean

PAPER = "STE-MM §4.1, Algorithm 1"
FASTER = "fewer epochs of the published form: it matches all models anew in every step"
SOURCE, OURS = "STE-MM §4.1", "a control of ours"

METHODS = ("as published", "ste-mm, share 1", "ste-mm", "wm to the first", "merge-many")


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root)
    data = open_data(p.data, "train", root=bench.root).with_batch_size(p.step)
    layers = samples.layers(train, p.width, p.depth, classes)

    def trial(number: int) -> list[Any]:
        """Test loss and accuracy of the mean by every method; of the models, their mean."""
        generator = bench.generator(f"networks {number}")
        start = stacks.fresh(p.models, layers, generator)
        steps = training.steps_of(p.epochs, len(train.targets), p.batch)
        ends = training.trained(start, *train, steps=steps, generator=generator, batch=p.batch)[steps]
        evidence = {"seed": number, "network": MLP(layers), "data": data}
        found = []
        for method in METHODS:
            merged = stacks.measured(stacks.mean(_matched(method, ends, p.passes, **evidence)), *test)
            found.append([float(merged.loss), float(merged.accuracy)])
        own = stacks.measured(ends, *test)
        return [*found, [float(own.loss.mean()), float(own.accuracy.mean())]]

    trials = bench.each("trial", range(p.trials), trial)
    figures = torch.tensor(trials, dtype=torch.float64)  # (trials, methods, figures)
    published, whole, ours, first, many = (figures[:, k, 0] for k in range(len(METHODS)))
    ends = figures[:, -1, 0]
    about = f"test loss of the mean of {p.models} models, {p.trials} trials"
    gap, over_wm, over_many = published - ends, published - first, published - many
    claims = [
        mean(source, says, f"{number}, {about}", expected, values.tolist())
        for source, says, number, expected, values in (
            (SOURCE, "the mean loses hardly more than the models", "difference to theirs", (-1, 0.05), gap),
            (SOURCE, "it beats matching to the first", "as published minus wm", BELOW, over_wm),
            (SOURCE, "it beats merge-many", "as published minus merge-many", BELOW, over_many),
            (OURS, "our changes cost nothing", "ste-mm minus as published", (-9, 0.02), ours - published),
            (
                OURS,
                "matching a share a step costs nothing",
                "difference to share 1",
                (-1, 0.05),
                ours - whole,
            ),
        )
    ]
    rows = [
        (name, *row) for name, row in zip((*METHODS, "the models"), figures.mean(0).tolist(), strict=True)
    ]
    table = Table(
        f"Mean of {p.models} models, {p.trials} trials, test, {p.data}", ("", "loss", "accuracy"), rows
    )
    at = list(range(len(METHODS)))
    names = ", ".join(f"{k}: {name}" for k, name in enumerate(METHODS))
    line = Line("test loss", at, figures.mean(0)[:-1, 0].tolist(), bars=0.7)
    panel = Panel("the mean of all models", names, "nats", [line], floor=0)
    return Outcome(claims, [table], [panel], [])


def _matched(method: str, ends: stacks.Stack, passes: int, **evidence: Any) -> stacks.Stack:
    """All models with their units in the order that a method finds."""
    if method == "merge-many":
        return matching.together(ends, merge_many.match, seed=evidence["seed"])
    if method == "wm to the first":
        return matching.to_first(ends, seed=evidence["seed"])
    options = {
        "as published": ste_mm.Options(as_published=True),
        "ste-mm, share 1": ste_mm.Options(epochs=passes, share=1.0),
        "ste-mm": ste_mm.Options(epochs=passes),
    }
    return matching.together(ends, functools.partial(ste_mm.match, options=options[method]), **evidence)
