"""Curves between aligned and unaligned networks: loss and accuracy along them, and what a step costs.

    python benchmarks/curves.py digits [--work DIR]              three pairs, trained here
    python benchmarks/curves.py mnist|tinyten --endpoints DIR [--work DIR]
    python benchmarks/curves.py … --study rates|robust|steps|projection

Pairs share no model. Every curve's figures go into DIR/curves.jsonl, and none that are there are found again.
Prints rows for results.md: means over pairs of the average and the lowest test accuracy along the curve, its
lowest between the ends, mean test and train loss; paired Student 95 % intervals beside the unaligned curve;
the first epoch in whose mean loss a curve is below the unaligned one's last. All on one thread.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from rebasin_cli import nets, networks  # noqa: E402
from rebasin_cli.checkpoints.checkpoint import open_checkpoint  # noqa: E402
from rebasin_cli.curves.curve import Curve, along  # noqa: E402
from rebasin_cli.curves.training import Search, Training  # noqa: E402
from rebasin_cli.curves.training import train as train_curve  # noqa: E402
from rebasin_cli.datasets import open_data  # noqa: E402
from rebasin_cli.matchers import Problem, State, registry  # noqa: E402
from rebasin_cli.matchers.doubly_stochastic.projecting import PROJECTIONS, projected  # noqa: E402
from rebasin_cli.matchers.doubly_stochastic.search import Run  # noqa: E402
from rebasin_cli.matchers.search.align import align  # noqa: E402
from rebasin_cli.measure.statistics import t_interval  # noqa: E402
from rebasin_cli.networks.attacks import Attack, attacked  # noqa: E402
from rebasin_cli.networks.evaluation import evaluate  # noqa: E402
from rebasin_cli.networks.training import train  # noqa: E402
from rebasin_cli.permutations.permutation import identity, permuted  # noqa: E402
from rebasin_cli.repair.batchnorm import reset  # noqa: E402
from rebasin_cli.spec.resolving import resolve_spec  # noqa: E402

FIGURES = ("accuracy, mean", "accuracy, lowest", "between the ends", "test loss, mean", "train loss, mean")
RESET = 512  # samples that running statistics are estimated anew on, at every point


@dataclass(frozen=True)
class Setting:
    """What is trained on what: `pairs` are seeds, or numbers of `files`; `points` lie on a measured curve."""

    data: str
    what: str
    pairs: tuple[tuple[int, int], ...]
    curve: dict[str, Any]
    kinds: tuple[str, ...] = ("bezier",)
    files: str = ""
    points: int = 25
    tested: int | None = None  # test samples; None: all
    search: dict[str, Any] = field(default_factory=dict)  # options of pam


SETTINGS = {
    "digits": Setting("digits", "mlp 3×32", ((0, 1), (2, 3), (4, 5)), {"epochs": 60}, ("bezier", "chain")),
    "mnist": Setting(
        "mnist",
        "mlp 3×64",
        ((1, 2), (3, 4), (5, 6)),
        {"epochs": 30},
        files="mlp64",
        search={"epochs": 2, "limit": 10_000},
    ),
    "tinyten": Setting(
        "cifar10",
        "tinyten, BatchNorm",
        ((1, 2), (3, 4)),
        {"epochs": 4, "weight_decay": 5e-4, "limit": 5000},
        files="tinyten_bn",
        points=9,
        tested=1000,
        search={"epochs": 1, "limit": 5000, "samples": 8, "scored": 500},
    ),
}
ALIGNED = {"none": "unaligned", "am": "am-aligned", "wm": "wm-aligned", "pam": "PAM", "am+pam": "PAM from am"}
ENDPOINTS = {"width": 32, "depth": 3, "epochs": 40, "batch_size": 64, "learning_rate": 1e-3}


class Study:
    """One setting: its endpoints, its samples, and the file of what was found already."""

    def __init__(self, setting: Setting, endpoints: Path | None, work: Path):
        self.setting, self.endpoints, self.file = setting, endpoints, work / "curves.jsonl"
        self.train = open_data(setting.data, "train", batch_size=128)
        test = open_data(setting.data, "test")
        self.splits = {
            "test": test if setting.tested is None else test.subset(setting.tested),
            "train": self.train.subset(setting.tested or 5000).with_batch_size(500),
        }
        work.mkdir(parents=True, exist_ok=True)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.known = {row["key"]: row for row in map(json.loads, lines)}

    def once(self, key: str, find: Any) -> dict[str, Any]:
        """What `find()` finds, found once."""
        key = f"{self.setting.data} {key}"
        if key not in self.known:
            began = time.monotonic()
            self.known[key] = {"key": key, **find(), "seconds": round(time.monotonic() - began, 1)}
            with self.file.open("a") as file:
                file.write(json.dumps(self.known[key]) + "\n")
            print(json.dumps({k: v for k, v in self.known[key].items() if k != "losses"}), file=sys.stderr)
        return self.known[key]

    @functools.cache  # noqa: B019 (one study a process)
    def model(self, number: int) -> dict[str, torch.Tensor]:
        if not self.setting.files:
            return train("mlp", self.setting.data, seed=number, **ENDPOINTS).tensors
        kept = open_checkpoint(self.endpoints / f"{self.setting.files}.{number}.safetensors")
        return {name: kept[name] for name in kept}

    @functools.cache  # noqa: B019
    def pair(self, a: int, b: int) -> tuple[Any, ...]:
        one, other = self.model(a), self.model(b)
        fitted = resolve_spec(None, [one, other])
        return one, other, fitted, networks.resolve(None, fitted.spec, fitted.shapes)

    @functools.cache  # noqa: B019
    def permutation(self, a: int, b: int, how: str) -> dict[str, torch.Tensor]:
        """Of b, aligned to a; "am+pam" goes on from am."""
        one, other, fitted, network = self.pair(a, b)
        perms = identity(fitted.words)
        for method in how.split("+"):
            if method == "none":
                continue
            moved = permuted(other, fitted, perms)
            more = {} if method == "wm" else {"network": network, "data": self.train, "prove": False}
            if method == "pam":
                options = registry.get("pam").Options(**{"init": "identity"} | self.setting.search)
                more["options"] = options
            found = align([one, moved], fitted, method=method, seed=a, **more)
            if method == "pam":
                told = {k: v for k, v in found.result.rounded.items() if k != "candidates"}
                self.once(f"{a}-{b} {how} rounding", lambda told=told: dict(told))
            perms = {word: perms[word][perm] for word, perm in found.permutations[0].items()}
        return perms

    def problem(self, a: int, b: int, how: str, **more: Any) -> tuple[Problem, dict[str, torch.Tensor]]:
        one, other, fitted, network = self.pair(a, b)
        perms = self.permutation(a, b, how)
        given = {"seed": a, "network": network, "data": self.train} | more
        return Problem(fitted, (one, permuted(other, fitted, perms)), **given), perms

    def curve(self, a: int, b: int, how: str, training: Training, **more: Any) -> tuple[Curve, list[float]]:
        """A trained curve, and its loss by epoch."""
        problem, perms = self.problem(a, b, how, **more)
        found = train_curve(problem, perms, training)
        ends = problem.models
        return Curve(training.kind, *ends, found.controls, problem.fitted.ignored), list(found.losses)

    def measured(self, curve: Curve, network: torch.nn.Module) -> list[float]:
        """The five figures along one curve."""
        found = {split: [] for split in self.splits}
        for k in range(self.setting.points):
            self.place(network, curve, k / (self.setting.points - 1))
            for split, data in self.splits.items():
                found[split].append(evaluate(network, data))
        speeds = [1.0] * self.setting.points
        right = along([point.accuracy for point in found["test"]], speeds)
        losses = [
            along([point.loss for point in found[split]], speeds)["mean"] for split in ("test", "train")
        ]
        return [right["mean"], right["lowest"], right["interior"]["lowest"], *losses]

    def place(self, network: torch.nn.Module, curve: Curve, t: float) -> None:
        """The network at t, between the ends with statistics of its own."""
        networks.load(network, curve.at(t))
        if 0 < t < 1 and networks.has_running_statistics(network):
            reset(network, self.train.subset(RESET))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--endpoints", type=Path)
    parser.add_argument("--work", type=Path, default=Path("curves-work"))
    parser.add_argument("--study", choices=("order", *STUDIES), default="order")
    parser.add_argument("--methods", nargs="+", choices=ALIGNED, default=list(ALIGNED))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(SETTINGS[asked.setting], asked.endpoints, asked.work)
    STUDIES[asked.study](study) if asked.study in STUDIES else order(study, asked.methods)


def order(study: Study, methods: list[str]) -> None:
    """Unaligned, aligned by each method, by PAM from either: the paper's tables 1 and 2, and its figure 3."""
    setting = study.setting
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for a, b in setting.pairs:
        for how in methods:
            for kind in setting.kinds:

                def find(a: int = a, b: int = b, how: str = how, kind: str = kind) -> dict[str, Any]:
                    curve, losses = study.curve(a, b, how, Training(kind, **setting.curve))
                    return {"figures": study.measured(curve, study.pair(a, b)[3]), "losses": losses}

                key = f"{a}-{b} {kind} {how} {setting.curve['epochs']} epochs"
                found.setdefault((kind, how), []).append(study.once(key, find))
    ends = [evaluate_end(study, number) for pair in setting.pairs for number in pair]
    print(f"\nMean test accuracy of the ends: {statistics.mean(ends):.4f}\n")
    print("| date | data | curve |", " | ".join(FIGURES), "| below the unaligned one's last loss |")
    print("|---|---|---|" + "---:|" * (len(FIGURES) + 1))
    for (kind, how), rows in found.items():
        both = zip(rows, found[kind, "none"], strict=True)
        epochs = [first_below(row["losses"], base["losses"]) for row, base in both]
        means = [statistics.mean(column) for column in zip(*(row["figures"] for row in rows), strict=True)]
        cells = [f"{mean:.4f}" for mean in means] + [", ".join(epochs)]
        print(head(setting, f"{kind}, {ALIGNED[how]}"), " | ".join(cells), "|")
    for (kind, how), rows in found.items():
        if how != "none":
            cells = paired([row["figures"] for row in rows], [r["figures"] for r in found[kind, "none"]])
            print(head(setting, f"{kind}, {ALIGNED[how]} − unaligned"), " | ".join(cells), "| |")


def evaluate_end(study: Study, number: int) -> float:
    network = study.pair(*next(pair for pair in study.setting.pairs if number in pair))[3]
    return evaluate(networks.load(network, study.model(number)), study.splits["test"]).accuracy


def head(setting: Setting, name: str) -> str:
    return f"| {datetime.date.today().isoformat()} | {setting.data}, {setting.what} | {name} |"


def paired(mine: list[list[float]], theirs: list[list[float]]) -> list[str]:
    """Means of the differences by figure, with Student 95 % intervals."""
    cells = []
    for k in range(len(mine[0])):
        gains = [one[k] - other[k] for one, other in zip(mine, theirs, strict=True)]
        low, high = t_interval(gains)
        cells.append(f"{statistics.mean(gains):+.4f} ({low:+.4f} to {high:+.4f})")
    return cells


def first_below(losses: list[float], base: list[float]) -> str:
    """The first epoch whose mean loss is at most that of the other training's last."""
    return next((str(k) for k, loss in enumerate(losses, start=1) if loss <= base[-1]), "never")


def rates(study: Study) -> None:
    """Nine settings of learning rate and batch: is every aligned curve above all others? (Table 3)"""
    setting = study.setting
    print("| date | data | rate | batch | unaligned | am-aligned | aligned − unaligned |")
    print("|---|---|---:|---:|---:|---:|---:|")
    lowest, highest = 1.0, 0.0
    for rate in (0.02, 0.05, 0.1):
        for batch in (64, 128, 256):
            figures: dict[str, list[float]] = {"none": [], "am": []}
            for a, b in setting.pairs:
                for how, values in figures.items():

                    def find(a: int = a, b: int = b, how: str = how, r: float = rate, s: int = batch) -> dict:
                        options = Training("bezier", **{**setting.curve, "learning_rate": r})
                        curve, losses = study.curve(a, b, how, options, data=study.train.with_batch_size(s))
                        return {"figures": study.measured(curve, study.pair(a, b)[3]), "losses": losses}

                    key = f"{a}-{b} bezier {how} {setting.curve['epochs']} epochs rate {rate} batch {batch}"
                    values.append(study.once(key, find)["figures"][0])
            means = {how: statistics.mean(values) for how, values in figures.items()}
            highest, lowest = max(highest, means["none"]), min(lowest, means["am"])
            (gain,) = paired([[value] for value in figures["am"]], [[value] for value in figures["none"]])
            cells = [f"{rate}", f"{batch}", f"{means['none']:.4f}", f"{means['am']:.4f}", gain]
            print(f"| {datetime.date.today().isoformat()} | {setting.data}, {setting.what} |", end=" ")
            print(" | ".join(cells), "|")
    print(f"\nThe highest unaligned mean is {highest:.4f}, the lowest aligned one {lowest:.4f}.")


def steps(study: Study) -> None:
    """Seconds of a curve's step over those of a plain step by SGD, the median of alternated epochs."""
    problem, perms = study.problem(*study.setting.pairs[0], "none")
    search = Search(problem, perms, Training())
    network = problem.network
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    batches = list(itertools.islice(study.train, 5))
    network.train()
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
    print(f"\nA step of curve training takes {statistics.median(ratios):.2f} times a plain one.")


ATTACK = {"mnist": "eps=0.1,step=0.025", "digits": "eps=0.1,step=0.025"}
STRONGER = "eps=0.1,step=0.025,steps=20,restarts=2"
ROBUST = {"width": 64, "depth": 3, "epochs": 20, "limit": 5_000, "learning_rate": 1e-3, "schedule": "late"}
ROWS = ("clean", "pgd-5", "pgd-20x2")
LOOKED = 17  # points of a robust curve


def robust(study: Study) -> None:
    """Endpoints and curves trained under attack: clean and attacked accuracy along them."""
    attack = ATTACK[study.setting.data]
    data = study.train.subset(ROBUST["limit"])
    test = open_data(study.setting.data, "test").subset(1000)
    rows: dict[str, list[list[float]]] = {}
    for a, b in study.setting.pairs:
        ends = [
            train("mlp", study.setting.data, seed=seed, attack=attack, **ROBUST).tensors for seed in (a, b)
        ]
        fitted = resolve_spec(None, ends)
        network = networks.resolve(None, fitted.spec, fitted.shapes)
        for how in ("none", "am"):

            def find(
                how: str = how, a: int = a, ends: Any = ends, fitted: Any = fitted, network: Any = network
            ) -> dict[str, Any]:
                perms = identity(fitted.words)
                if how == "am":
                    given = {"network": network, "data": data, "prove": False}
                    perms = align(ends, fitted, method=how, **given).permutations[0]
                moved = permuted(ends[1], fitted, perms)
                problem = Problem(fitted, (ends[0], moved), seed=a, network=network, data=data)
                found = train_curve(problem, perms, Training(epochs=ROBUST["epochs"], attack=attack))
                curve = Curve("bezier", ends[0], moved, found.controls, fitted.ignored)
                figures: dict[str, list[float]] = {name: [] for name in ROWS}
                for k in range(LOOKED):
                    networks.load(network, curve.at(k / (LOOKED - 1)))
                    under = [
                        test,
                        *(attacked(test, network, Attack.parse(one)) for one in (attack, STRONGER)),
                    ]
                    for name, samples in zip(ROWS, under, strict=True):
                        figures[name].append(evaluate(network, samples).accuracy)
                return {"along": figures}

            along_it = study.once(f"{a}-{b} robust {how}", find)["along"]
            rows.setdefault(how, []).append([f for name in ROWS for f in _summary(along_it[name])])
    print("| date | data | curve |", " | ".join(f"{n}, {w}" for n in ROWS for w in SUMMARY), "|")
    print("|---|---|---|" + "---:|" * (len(ROWS) * len(SUMMARY)))
    setting = study.setting
    for how, found in rows.items():
        means = [f"{statistics.mean(column):.4f}" for column in zip(*found, strict=True)]
        print(head(setting, ALIGNED[how]), " | ".join(means), "|")
    print(head(setting, "am-aligned − unaligned"), " | ".join(paired(rows["am"], rows["none"])), "|")


SUMMARY = ("ends", "middle", "mean", "lowest", "middle − ends")


def _summary(values: list[float]) -> list[float]:
    ends, middle = (values[0] + values[-1]) / 2, values[len(values) // 2]
    return [ends, middle, statistics.mean(values), min(values), middle - ends]


def projection(study: Study) -> None:
    """Seconds of PAM's projection of one matrix of 512 units, and its share of a step of an MLP 3×512."""
    matrix = torch.rand(512, 512)
    for how in PROJECTIONS:
        seconds = []
        for _ in range(15):
            began = time.perf_counter()
            projected(matrix, how, 20)
            seconds.append(time.perf_counter() - began)
        print(f"{how}: {1000 * statistics.median(seconds):.1f} ms for 20 rounds, n = 512")
    network = nets.build("mlp", input_shape=(1, 28, 28), classes=10, width=512, depth=3)
    models = [dict(network.state_dict())] * 2
    fitted = resolve_spec(None, models)
    inputs, targets = next(iter(study.train))
    if inputs.shape[1:] != (1, 28, 28):
        inputs = torch.rand(len(inputs), 1, 28, 28)
    problem = Problem(fitted, tuple(models), network=network, data=[(inputs, targets)])
    run = Run(problem, registry.get("pam").Options(init="identity"))
    run.begin(State((identity(fitted.words),)))
    anchor, whole, shares = run._anchor(), [], []
    for _ in range(9):
        spent = [0.0]

        def timed(*arguments: Any, spent: list[float] = spent) -> torch.Tensor:
            began = time.perf_counter()
            found = projected(*arguments)
            spent[0] += time.perf_counter() - began
            return found

        with mock.patch("rebasin_cli.matchers.doubly_stochastic.search.projected", timed):
            began = time.perf_counter()
            run._step(inputs, targets, anchor)
            whole.append(time.perf_counter() - began)
        shares.append(spent[0] / whole[-1])
    print(
        f"a step of PAM, mlp 3×512, batch 128: {1000 * statistics.median(whole):.0f} ms, "
        f"of which projections take {statistics.median(shares):.0%}"
    )


STUDIES = {"rates": rates, "steps": steps, "robust": robust, "projection": projection}


if __name__ == "__main__":
    main()
