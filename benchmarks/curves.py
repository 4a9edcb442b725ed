"""Curves between aligned and unaligned networks: loss and accuracy along them, and what a step costs.

    python benchmarks/curves.py [--data digits] [--width 32] [--epochs 40] [--curve-epochs 60] [--limit N]
                                [--steps]

Three pairs of MLPs with three hidden layers that share no model (seeds 0–1, 2–3, 4–5). Prints rows for
results.md: means over pairs of the average and the lowest test accuracy along the curve, its lowest between
the ends, mean test and train loss; paired Student 95 % intervals of aligned minus unaligned. --steps times a
step of curve training against a step of plain training of the same network, alternated. Endpoints and curves
are trained on one thread.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from rebasin_cli import networks  # noqa: E402
from rebasin_cli.curves.curve import Curve, along  # noqa: E402
from rebasin_cli.curves.training import Search, Training  # noqa: E402
from rebasin_cli.curves.training import train as train_curve  # noqa: E402
from rebasin_cli.datasets import open_data  # noqa: E402
from rebasin_cli.matchers import Problem  # noqa: E402
from rebasin_cli.matchers.search.align import align  # noqa: E402
from rebasin_cli.measure.statistics import t_interval  # noqa: E402
from rebasin_cli.networks.evaluation import evaluate  # noqa: E402
from rebasin_cli.networks.training import train  # noqa: E402
from rebasin_cli.permutations.permutation import identity, permuted  # noqa: E402
from rebasin_cli.spec.resolving import resolve_spec  # noqa: E402

PAIRS, POINTS = ((0, 1), (2, 3), (4, 5)), 25
FIGURES = ("accuracy, mean", "accuracy, lowest", "between the ends", "test loss, mean", "train loss, mean")


def measured(curve: Curve, network: torch.nn.Module, splits: dict) -> list[float]:
    """The five figures along one curve."""
    found = {split: [] for split in splits}
    for k in range(POINTS):
        networks.load(network, curve.at(k / (POINTS - 1)))
        for split, data in splits.items():
            found[split].append(evaluate(network, data))
    speeds = [1.0] * POINTS
    right = along([point.accuracy for point in found["test"]], speeds)
    losses = [along([point.loss for point in found[split]], speeds)["mean"] for split in ("test", "train")]
    return [right["mean"], right["lowest"], right["interior"]["lowest"], *losses]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="digits")
    for name, default in (("width", 32), ("epochs", 40), ("curve-epochs", 60), ("limit", None)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    whole = open_data(asked.data, "train", batch_size=128)
    train_data = whole if asked.limit is None else whole.subset(asked.limit)
    splits = {"test": open_data(asked.data, "test"), "train": train_data.subset(5000).with_batch_size(500)}
    recipe = {
        "width": asked.width,
        "depth": 3,
        "epochs": asked.epochs,
        "batch_size": 64,
        "learning_rate": 1e-3,
    }
    rows: dict[str, list[list[float]]] = {}
    ends: list[float] = []
    for a, b in PAIRS:
        models = [train("mlp", asked.data, seed=seed, limit=asked.limit, **recipe) for seed in (a, b)]
        ends += [float(model.metadata["rebasin.test_accuracy"]) for model in models]
        one, other = (model.tensors for model in models)
        fitted = resolve_spec(None, [one, other])
        network = networks.resolve(None, fitted.spec, fitted.shapes)
        for method in ("none", "am", "wm"):
            perms = identity(fitted.words)
            if method != "none":
                needs = {"network": network, "data": train_data, "prove": False} if method == "am" else {}
                perms = align([one, other], fitted, method=method, **needs).permutations[0]
            moved = permuted(other, fitted, perms)
            problem = Problem(fitted, (one, moved), seed=a, network=network, data=train_data)
            for kind in ("bezier", "chain"):
                found = train_curve(problem, perms, Training(kind, epochs=asked.curve_epochs))
                curve = Curve(kind, one, moved, found.controls, fitted.ignored)
                name = f"{kind}, {'unaligned' if method == 'none' else f'{method}-aligned'}"
                rows.setdefault(name, []).append(measured(curve, network, splits))
                print(
                    f"{a}–{b} {name}: " + "  ".join(f"{value:.4f}" for value in rows[name][-1]),
                    file=sys.stderr,
                )
    print(f"\nMean test accuracy of the ends: {statistics.mean(ends):.4f}\n")
    print("| date | data | curve |", " | ".join(FIGURES), "|")
    print("|---|---|---|" + "---:|" * len(FIGURES))
    today = datetime.date.today().isoformat()
    about = f"{asked.data}, mlp 3×{asked.width}"
    for name, values in rows.items():
        means = [statistics.mean(column) for column in zip(*values, strict=True)]
        print(f"| {today} | {about} | {name} |", " | ".join(f"{mean:.4f}" for mean in means), "|")
    for name, values in rows.items():
        base = f"{name.partition(',')[0]}, unaligned"
        if name == base:
            continue
        cells = []
        for k in range(len(FIGURES)):
            gains = [mine[k] - theirs[k] for mine, theirs in zip(values, rows[base], strict=True)]
            low, high = t_interval(gains)
            cells.append(f"{statistics.mean(gains):+.4f} ({low:+.4f} to {high:+.4f})")
        print(f"| {today} | {about} | {name} − unaligned |", " | ".join(cells), "|")
    if asked.steps:
        times = ratio(problem, perms, network, train_data)
        print(f"\nA step of curve training takes {times:.2f} times a plain one.")


def ratio(problem: Problem, perms: dict, network: torch.nn.Module, data) -> float:
    """Seconds of a curve's step over those of a plain step by SGD, the median of alternated epochs."""
    search = Search(problem, perms, Training())
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    batches = list(data)
    ratios = []
    for _ in range(21):
        seconds = []
        began = time.perf_counter()
        for inputs, targets in batches:
            search._step(inputs, targets, 0)
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(network(inputs), targets)
            loss.backward()
            loss.item()  # a training looks at its loss, too
            optimizer.step()
        ratios.append(seconds[0] / (time.perf_counter() - began))
    return statistics.median(ratios)


if __name__ == "__main__":
    main()
