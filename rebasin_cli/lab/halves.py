"""Is the mean of many models, each of a random half of the data, better calibrated than all of them?

Models trained on random halves are brought into one basin by merge-many, without kicks, as in the paper, and
averaged. Reliability is over bins of equal width, on training and test data, for the merge and for every
model.
"""

from __future__ import annotations

from typing import Any

import torch

from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import BELOW, Claim, Line, Outcome, Panel, Table, bootstrap, exact

PAPER = "Git Re-Basin A.6, Figure 12"
FASTER = "narrower models: the rounds of merge-many take most of the time"
SOURCE = "Git Re-Basin A.6, Figure 12"


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)
    splits = {"train": train, "test": test}

    def everything(_: str) -> dict[str, Any]:
        """Of both splits: for all models and the merge (last) loss, accuracy, ECE; the merge's bins."""
        generator = bench.generator("networks")
        start = stacks.fresh(p.models, samples.layers(train, p.width, p.depth, classes), generator)
        chosen = samples.halves(p.models, len(train.targets), p.share, generator)
        steps = training.steps_of(p.epochs, chosen.shape[1], p.batch)
        how = {"batch": p.batch, "rate": p.rate, "chosen": chosen}
        ends = training.trained(start, *train, steps=steps, generator=generator, **how)[steps]
        merged = stacks.mean(matching.together(ends, matching.by("merge-many"), seed=bench.seed))
        every = stacks.joined([ends, merged, stacks.mean(ends)])
        found = {}
        for split, (inputs, targets) in splits.items():
            rows, bins = [], []
            for number in range(p.models + 2):
                one = stacks.part(every, slice(number, number + 1))
                with torch.inference_mode():
                    logits = stacks.outputs(one, inputs).double()
                (about,) = stacks.calibration(logits, targets, p.bins)
                accuracy = float((logits[0].argmax(1) == targets).double().mean())
                rows.append([float(stacks.cross_entropies(logits, targets)), accuracy, about["ece"]])
                full = [k for k in range(p.bins) if about["samples"][k] > 0]
                bins.append([[about["confidence"][k], about["accuracy"][k]] for k in full])
            found[split] = [rows, [bins[0], bins[-2]]]
        return found

    (found,) = bench.each("training and matching", [f"{p.models} models"], everything)
    claims, body, panels = [], [], []
    for split, (rows, bins) in found.items():
        figures = torch.tensor(rows, dtype=torch.float64)
        models, merge, naive = figures[:-2], figures[-2], figures[-1]
        about = f"its ECE minus the lowest of {p.models}, {split}, {p.bins} bins"
        says = "the merge is better calibrated than every model"
        claims.append(exact(SOURCE, says, about, BELOW, float(merge[2] - models[:, 2].min())))
        for says, column in (
            ("the merge has a lower loss than the models", 0),
            ("a lower ECE than the models", 2),
        ):
            differs = [[float(merge[column] - model[column])] for model in models]
            about = f"difference to their mean, {split}"
            claims.append(
                Claim(SOURCE, says, about, BELOW, *bootstrap(differs, lambda m: m[..., 0], seed=bench.seed))
            )
        middle, best = models.mean(0), models.amin(0)
        body += [
            (split, "mean of the models", *middle.tolist()),
            (split, "lowest of the models", *best.tolist()),
        ]
        body += [(split, "merge-many", *merge.tolist()), (split, "naive mean", *naive.tolist())]
        lines = [Line("right on average", [0, 1], [0, 1], dashed=True)]
        for name, points in zip(("first model", "merge-many"), bins, strict=True):
            lines.append(Line(name, [x for x, _ in points], [y for _, y in points]))
        panels.append(Panel(f"reliability, {split}", "confidence", "accuracy, 0–1", lines))
    table = Table(
        f"{p.models} models of random halves, {p.data}", ("split", "", "loss", "accuracy", "ECE"), body
    )
    return Outcome(claims, [table], panels, [])
