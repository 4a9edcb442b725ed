"""Repaired or not? The regret of rules that choose by samples at hand, in nats of test loss.

    python benchmarks/choices.py measure --data mnist --files mlp64.1.safetensors … [--counts 2 3 4]
        [--methods wm am] [--groups 3]          adds cases to benchmarks/choices.csv
    python benchmarks/choices.py measure --data digits --widths 16 32 64      trains what it measures
    python benchmarks/choices.py rules          the table of rules, from the recorded cases

A case is a group of n models, a method, and the merge without and with `--repair repair`. Its truth is the
difference of both on nine tenths of the test split. What rules may look at: the remaining tenth ("test"),
training samples that the repair was not measured on ("train"), and those with noise of 0.5, 1 or 2
standard deviations of the inputs, or mixed with others ("noise 0.5", …, "mixed"): loss without minus loss
with repair, its standard error, and the same at the best temperature of each.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from _rows import line

import rebasin_cli
from rebasin_cli import matchers, networks
from rebasin_cli.datasets import Samples, open_data
from rebasin_cli.learning.training import train as training
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.repair.calibration import COLDEST, Scaled
from rebasin_cli.repair.choosing import MARGIN, SURE
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.library import resolve_spec

TABLE = Path(__file__).with_name("choices.csv")
RESET, HELD, TENTH, BATCH = 2_560, 2_560, 0.1, 256
NOISES = (0.5, 1.0, 2.0)
LOOKS = ("test", "train", *(f"noise {s:g}" for s in NOISES), "mixed")
FIGURES = ("gain", "error", "matched", "matched error", "cold")
CASE = ("date", "data", "net", "width", "models", "n", "method", "none", "repair")
FIELDS = (*CASE, *(f"{look} {figure}" for look in LOOKS for figure in FIGURES))


@dataclass(frozen=True)
class Corrupted:
    """Batches with normal noise, `strength` times the standard deviation of all numbers of the first batch.

    It is drawn by a seed, the same every time that one goes through them.
    """

    batches: Any
    strength: float

    def __iter__(self) -> Iterator[Any]:
        rng, spread = generator(0, "corruption of held-out samples"), None
        for inputs, targets in self.batches:
            spread = inputs.std().item() if spread is None else spread
            yield inputs + self.strength * spread * torch.randn(inputs.shape, generator=rng), targets


@dataclass(frozen=True)
class Mixed:
    """Every sample with 0.3 of another one, its own label kept."""

    batches: Any

    def __iter__(self) -> Iterator[Any]:
        for inputs, targets in self.batches:
            yield 0.7 * inputs + 0.3 * inputs.roll(1, 0), targets


def looks(held: Any, tenth: Any) -> dict[str, Any]:
    noisy = {f"noise {s:g}": Corrupted(held, s) for s in NOISES}
    return {"test": tenth, "train": held, **noisy, "mixed": Mixed(held)}


def seen(network: Any, batches: Any) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Each sample's loss as it is and at the best temperature, and whether that has no bottom."""
    plain = evaluate(network, batches, each=True).each[:, 0].double()
    scaled = Scaled(network, batches, None, "cpu")
    matched = evaluate(scaled, batches, each=True).each[:, 0].double()
    return plain, matched, scaled.temperature < 1.01 * COLDEST


def figures(before: Any, after: Any) -> list[float]:
    found: list[float] = []
    for one, other in zip(before[:2], after[:2], strict=True):
        apart = one - other
        found += [apart.mean().item(), (apart.std() / math.sqrt(len(apart))).item()]
    return [*found, float(before[2] and after[2])]


def aligned(models: list[Any], method: str, fitted: Any, network: Any, train: Any) -> Any:
    samples = getattr(matchers.registry.get(method), "SAMPLES", 10_000)
    given = {"data": train if samples is None else train.subset(samples, 0), "prove": False}
    options = {"epochs": 2} if method.startswith("ste") else {}
    return rebasin_cli.align(*models, fitted, method=method, network=network, options=options, **given).models


def case(models: list[Any], method: str, network: Any, data: tuple[Any, Any]) -> dict[str, Any]:
    """Both losses on nine tenths of the test split, and what there is to look at."""
    train, test = data
    fitted = resolve_spec(None, models)
    models = models if method == "none" else aligned(models, method, fitted, network, train)
    measured = min(RESET, train.samples * 2 // 3)
    reset = train.subset(measured, 0).with_batch_size(BATCH).mixed(0)
    held = train.subset(HELD, 0, skip=measured)
    order = torch.randperm(test.samples, generator=torch.Generator().manual_seed(0))
    tenth, rest = (
        replace(test, source=Samples(test.source.inputs[p], test.source.targets[p]))
        for p in (order[: int(TENTH * len(order))], order[int(TENTH * len(order)) :])
    )
    ways = looks(held, tenth)
    told = {}
    for how in ("none", "repair"):
        merged = rebasin_cli.merge(
            models, fitted, method="none", repair_with=how, network=network, train=reset
        )
        networks.load(network, dict(merged.tensors))
        told[how] = ({look: seen(network, it) for look, it in ways.items()}, evaluate(network, rest).loss)
    row: dict[str, Any] = {how: loss for how, (_, loss) in told.items()}
    for look in LOOKS:
        both = (told[how][0][look] for how in ("none", "repair"))
        row |= {f"{look} {n}": v for n, v in zip(FIGURES, figures(*both), strict=True)}
    return row


def groups(count: int, n: int, most: int) -> list[tuple[int, ...]]:
    """Some groups of n of `count` models that share as few as can be."""
    every = list(itertools.combinations(range(count), n))
    apart = [tuple(range(k, k + n)) for k in range(0, count - n + 1, n)]
    return list(dict.fromkeys([*apart, *every[:: max(1, len(every) // most)]]))[:most]


def add(row: dict[str, Any]) -> None:
    new = not TABLE.exists()
    with TABLE.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow({n: f"{v:.5f}" if isinstance(v, float) else v for n, v in row.items()})


def sets(asked: argparse.Namespace) -> Iterator[tuple[str, list[str], list[Any]]]:
    """Width, names and tensors of models that can be merged with each other."""
    if asked.files:
        opened = [rebasin_cli.open_checkpoint(path) for path in asked.files]
        models = [dict(model) for model in opened]
        width = max(resolve_spec(None, models).words.values())
        yield str(width), [path.stem.partition(".")[2] or path.stem for path in asked.files], models
    for width in asked.widths or ():
        trained = [
            training("mlp", asked.data, width=width, norm=asked.norm, seed=seed).tensors
            for seed in range(1, max(asked.counts) + 2)
        ]
        yield str(width), [str(seed) for seed in range(1, len(trained) + 1)], trained


def measure(asked: argparse.Namespace) -> None:
    data = tuple(open_data(asked.data, split) for split in ("train", "test"))
    for width, names, models in sets(asked):
        fitted = resolve_spec(None, models)
        network = networks.resolve(None, fitted.spec, fitted.shapes).float()
        for n, method in itertools.product(asked.counts, asked.methods):
            for group in groups(len(models), n, asked.groups):
                row = case([models[k] for k in group], method, network, data)
                net = fitted.spec.name + (f" {asked.norm}" if asked.norm else "")
                about = (date.today(), asked.data, net, width, " ".join(names[k] for k in group), n, method)
                add(dict(zip(CASE, about, strict=False)) | row)
                print(*about, f"repair gains {row['none'] - row['repair']:+.4f}", flush=True)


# ------------------------------------------------------------------------------------------------ rules

Row = dict[str, Any]


def by(look: str, *, matched: bool = False, sure: float = 0.0, margin: float = 0.0) -> Callable[[Row], bool]:
    """Repair where the loss there falls by more than so many standard errors and nats."""
    kind = "matched" if matched else "gain"
    error = "matched error" if matched else "error"
    return lambda row: row[f"{look} {kind}"] > max(margin, sure * row[f"{look} {error}"])


def earlier(look: str) -> Callable[[Row], bool]:
    """As it was: the loss falls, and so it does at the best temperature of each, by two standard errors."""
    plain, matched = by(look), by(look, matched=True, sure=2)
    return lambda row: not row[f"{look} cold"] and plain(row) and matched(row)


def chosen_rule(row: Row) -> bool:
    """As `repair.choosing` decides by training samples."""
    falls = by("train", matched=True)(row) and not row["train cold"]
    return falls and by("train", sure=SURE, margin=MARGIN)(row)


def both(*rules: Callable[[Row], bool]) -> Callable[[Row], bool]:
    return lambda row: all(rule(row) for rule in rules)


RULES: dict[str, Callable[[Row], bool]] = {
    "never": lambda row: False,
    "always": lambda row: True,
    "the rule without --held-out (train: 0.03 nats, 2 errors, falls when matched)": chosen_rule,
    "the rule with --held-out 0.1 (test: falls)": by("test"),
    "train: before (falls, and 2 errors when matched)": earlier("train"),
    "train: 2 errors": by("train", sure=2),
    "train: 0.02 nats and 2 errors": by("train", sure=2, margin=0.02),
    "train: 0.05 nats and 2 errors": by("train", sure=2, margin=0.05),
    "train, matched: 0.02 nats": by("train", matched=True, sure=2, margin=0.02),
    "test: 1 error": by("test", sure=1),
    "test: 2 errors": by("test", sure=2),
    "test: as before": earlier("test"),
    **{f"{look}: 2 errors": by(look, sure=2) for look in LOOKS[2:]},
    **{f"{look}: as before": earlier(look) for look in LOOKS[2:]},
    "train and noise 1: 2 errors": both(by("train", sure=2), by("noise 1", sure=2)),
    "mixed and noise 1: 2 errors": both(by("mixed", sure=2), by("noise 1", sure=2)),
}


def read() -> list[Row]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [
            {name: value if name in CASE[:-2] else float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def rules() -> None:
    rows = read()
    print(f"{len(rows)} cases; repair is the better one in {sum(r['repair'] < r['none'] for r in rows)}\n")
    columns = ("right", "mean regret", "largest", "harm", "largest harm", "cases harmed by 0.002 or more")
    line("rule", *columns)
    print("|---" * (len(columns) + 1) + "|")
    for name, rule in RULES.items():
        chosen = [row["repair"] if rule(row) else row["none"] for row in rows]
        regret = [loss - min(row["none"], row["repair"]) for loss, row in zip(chosen, rows, strict=True)]
        harm = [max(0.0, loss - row["none"]) for loss, row in zip(chosen, rows, strict=True)]
        line(
            name,
            f"{sum(it == 0 for it in regret)} of {len(rows)}",
            f"{sum(regret) / len(rows):.4f}",
            f"{max(regret):.4f}",
            f"{sum(harm) / len(rows):.4f}",
            f"{max(harm):.4f}",
            sum(it >= 0.002 for it in harm),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("measure", "rules"))
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--files", type=Path, nargs="+")
    parser.add_argument("--widths", type=int, nargs="+")
    parser.add_argument("--norm", choices=("layer",))
    parser.add_argument("--counts", type=int, nargs="+", default=[2])
    parser.add_argument("--methods", nargs="+", default=["wm"])
    parser.add_argument("--groups", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rules() if asked.what == "rules" else measure(asked)


if __name__ == "__main__":
    main()
