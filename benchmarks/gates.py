"""How often does `--baseline` stop a merge that is as good, and how often does it see one that is worse?

The losses are those of merges of real networks: three are trained on a data set, each pair is aligned and
merged, and test losses of single samples are drawn from two such merges. To make two *equally good* models
of them, each sample's two losses are exchanged by the toss of a coin: the mean difference is then 0, and all
that the samples share, and how heavy the tails are, stays. A worse model has a known loss added to every
sample.

    python benchmarks/gates.py --data digits            (five minutes)
    python benchmarks/gates.py --data mnist --width 256 --epochs 4 --samples 1000 10000
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

import rebasin_cli
from rebasin_cli import nets, networks
from rebasin_cli.datasets import open_data
from rebasin_cli.learning.training import train
from rebasin_cli.measure import baseline, intervals
from rebasin_cli.measure.samples import kept as kept_of
from rebasin_cli.networks.evaluation import Scores, evaluate
from rebasin_cli.reports import Curve, Middle, Report, Row

RULES = ("tolerance alone", "intervals", "paired")
TOLERANCES = (0.0, baseline.TOLERANCE)


def merges(data: str, width: int, epochs: int) -> tuple[list[Scores], Scores]:
    """The scores of two aligned merges on the test split, every sample's too; and those of an endpoint."""
    made = [train("mlp", data, seed=seed, width=width, depth=3, epochs=epochs) for seed in (1, 2, 3)]
    test = open_data(data, "test")
    (inputs, _), *_ = test
    network = nets.build("mlp", input_shape=tuple(inputs.shape[1:]), classes=10, width=width, depth=3)
    models = [model.tensors for model in made]
    merged = [rebasin_cli.merge([models[0], other], "mlp", method="wm").tensors for other in models[1:]]
    found = [evaluate(networks.load(network, model), test, each=True) for model in (*merged, models[0])]
    return found[:2], found[2]


def report(each: torch.Tensor, end: torch.Tensor, seed: int) -> Report:
    """A report of which only the shipped row's λ = ½ matters; `each`, `end`: losses of single samples."""
    loss, floor = each.mean().item(), end.mean().item()
    curve = Curve((0.0, 0.5, 1.0), (floor, loss, floor), (0.9, 0.9, 0.9), len(each))
    right = torch.full_like(each, 0.9)
    scores = [Scores(0.0, 0.0, len(each), 0.0, each=torch.stack([one, right], 1)) for one in (each, end, end)]
    row = Row("aligned", {"test": curve}, {}, shipped=True, middle={"test": Middle(math.nan)})
    (row,) = intervals.compare([row], scores[1:], {"aligned": scores[0]}, seed=seed).rows
    kept = kept_of(scores[0], scores[1:], [(torch.zeros(1, 1), torch.zeros(1))])
    return Report("0", "", 0, (), {}, {}, {}, {}, (), (row,), each=kept)


def by(rule: str, whole: Report) -> Report:
    """The report with no more than what the rule needs."""
    if rule == "paired":
        return whole
    (row,) = whole.rows
    rows = (row if rule == "intervals" else dataclasses.replace(row, middle={}),)
    return dataclasses.replace(whole, each={}, rows=rows)


def run(
    pair: Sequence[torch.Tensor], end: torch.Tensor, samples: int, runs: int, worse: float
) -> dict[tuple[float, str], int]:
    """How many of `runs` miss the gate on loss by tolerance and rule, where the second loses `worse` more."""
    rng, missed = np.random.default_rng(0), dict.fromkeys(itertools.product(TOLERANCES, RULES), 0)
    for number in range(runs):
        drawn = torch.tensor(rng.integers(0, len(end), samples))
        coin = torch.tensor(rng.integers(0, 2, samples)).bool()
        one, two = (each[drawn] for each in pair)
        one, two = torch.where(coin, one, two), torch.where(coin, two, one) + worse
        old, new = (report(each, end[drawn], number) for each in (one, two))
        for tolerance, rule in missed:
            gate, _ = baseline.against(by(rule, old), by(rule, new), tolerance)
            missed[tolerance, rule] += not gate.met
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, nargs="+", default=[360, 2_000])
    parser.add_argument("--worse", type=float, nargs="+", default=[0.0, 0.02, 0.05])
    parser.add_argument("--runs", type=int, default=200)
    asked = parser.parse_args()
    merged, endpoint = merges(asked.data, asked.width, asked.epochs)
    pair, end = [one.each[:, 0] for one in merged], endpoint.each[:, 0]
    apart = (pair[1] - pair[0]).std().item()
    heights = [(one - end).std().item() for one in pair]
    unpaired = math.hypot(*heights)
    print(f"{asked.data}, mlp 3x{asked.width}: the merges lose {merged[0].loss:.4f} and {merged[1].loss:.4f}")
    print(f"standard deviation of the difference: {apart:.3f} paired, {unpaired:.3f} not paired")
    print(f"| date | data | samples | worse by, nats | tolerance | runs | {' | '.join(RULES)} |")
    print(f"|{'---|' * (6 + len(RULES))}")
    for samples, worse in itertools.product(asked.samples, asked.worse):
        missed = run(pair, end, samples, asked.runs, worse)
        for tolerance in TOLERANCES:
            shares = " | ".join(f"{missed[tolerance, rule] / asked.runs:.1%}" for rule in RULES)
            about = f"{asked.data} | {samples:,} | {worse:g} | {tolerance:g} | {asked.runs}"
            print(f"| {datetime.date.today()} | {about} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
