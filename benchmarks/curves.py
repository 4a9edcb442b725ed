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
import dataclasses
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
from rebasin_cli.datasets import open_data  # noqa: E402
from rebasin_cli.learning.curves.curve import Curve, along  # noqa: E402
from rebasin_cli.learning.curves.training import Search, Training  # noqa: E402
from rebasin_cli.learning.curves.training import train as train_curve  # noqa: E402
from rebasin_cli.learning.loop import Learner  # noqa: E402
from rebasin_cli.learning.training import train  # noqa: E402
from rebasin_cli.matchers import Problem, State, registry  # noqa: E402
from rebasin_cli.matchers.portfolio.align import align  # noqa: E402
from rebasin_cli.matchers.relaxed.matrices import PROJECTIONS, projected  # noqa: E402
from rebasin_cli.matchers.relaxed.search import Run  # noqa: E402
from rebasin_cli.measure.intervals import t_interval  # noqa: E402
from rebasin_cli.networks.attacks import Attack, attacked  # noqa: E402
from rebasin_cli.networks.evaluation import evaluate  # noqa: E402
from rebasin_cli.repair.batchnorm import reset  # noqa: E402
from rebasin_cli.spec.library import resolve_spec  # noqa: E402
from rebasin_cli.symmetry.permutation import identity, permuted  # noqa: E402

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
        ((1, 2), (3, 4), (5, 6)),
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
                told = found.result.account.rounding.plain()
                self.once(f"{a}-{b} {how} rounding", lambda told=told: told)
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
    parser.add_argument("--epochs", type=int, help="of a curve, where not as usual")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    setting = SETTINGS[asked.setting]
    if asked.epochs:
        setting = dataclasses.replace(setting, curve=setting.curve | {"epochs": asked.epochs})
    study = Study(setting, asked.endpoints, asked.work)
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
    """A curve's step beside plain steps by SGD, as torch does it by default and fused: medians, alternated.

    In seconds of this thread on the processor, which other jobs change least. The rate is next to nothing:
    hundreds of steps on the same few batches would end in numbers that processors are slow with.
    """
    problem, perms = study.problem(*study.setting.pairs[0], "none")
    decay = study.setting.curve.get("weight_decay", 0.0)
    search = Search(problem, perms, Training(learning_rate=1e-9, weight_decay=decay))
    network = problem.network.train()
    batches = list(itertools.islice(study.train, 5))
    with search.within(0):
        ways = {"curve": lambda *batch: stepped(search, *batch)}
        for name, fused in (("plain", None), ("plain, fused", True)):
            how = {"lr": 1e-9, "momentum": 0.9, "nesterov": True, "weight_decay": decay, "fused": fused}
            ways[name] = plain(network, torch.optim.SGD(network.parameters(), **how))
        for way in ways.values():  # memory that is held comes with the first step
            way(*batches[0])
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        rounds = max(5, min(200, int(1 / timed(ways["plain"], batches[0]))))
        for _, batch, (name, way) in itertools.product(range(rounds), batches, ways.items()):
            seconds[name].append(timed(way, batch))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"\nA step, {study.setting.what}, batch 128, the median of {5 * rounds}:")
    for name, median in medians.items():
        print(f"{name}: {1000 * median:.3f} ms, the curve's {medians['curve'] / median:.2f} times that")


def stepped(learner: Learner, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """A step as the loop takes it."""
    loss = learner.loss(inputs, targets)
    loss.item()
    loss.backward()
    learner.move()
    learner.done += 1


def plain(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """A step of plain training."""

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(network(inputs), targets)
        loss.backward()
        loss.item()  # a training looks at its loss, too
        optimizer.step()

    return step


def timed(way: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Seconds of one step on the processor."""
    began = time.thread_time()
    way(*batch)
    return time.thread_time() - began


@dataclass(frozen=True)
class Robust:
    """Endpoints of a `net` and curves trained under `attack`, and `points` of these measured under it.

    Also under twenty of its steps with two restarts, on so many test `samples`. Endpoints that lie among
    `--endpoints` as FILES.SEED.safetensors are not trained.
    """

    attack: str
    net: str
    endpoints: dict[str, Any]
    curve: dict[str, Any]
    pairs: tuple[tuple[int, int], ...]
    points: int = 17
    samples: int = 1000
    files: str = ""

    @property
    def attacks(self) -> tuple[Attack, Attack]:
        return Attack.parse(self.attack), Attack.parse(f"{self.attack},steps=20,restarts=2")


ROBUST = {
    "mnist": Robust(
        "eps=0.1,step=0.025",
        "mlp",
        {"width": 64, "depth": 3, "epochs": 20, "limit": 5_000, "learning_rate": 1e-3},
        {"epochs": 20},
        SETTINGS["mnist"].pairs,
    ),
    "cifar10": Robust(
        "eps=8/255,step=2/255",
        "tinyten",
        {"norm": "batch", "epochs": 3, "limit": 5_000},
        {"epochs": 3, "weight_decay": 5e-4},
        SETTINGS["tinyten"].pairs,
        points=5,
        samples=500,
        files="tinyten_robust",
    ),
}
ROWS = ("clean", "pgd-5", "pgd-20x2")
SUMMARY = ("ends", "middle", "mean", "lowest", "middle − ends")


def robust(study: Study) -> None:
    """Endpoints and curves trained under attack: clean and attacked accuracy along them."""
    how = ROBUST[study.setting.data]
    study.train = study.train.subset(how.endpoints["limit"])
    rows: dict[str, list[list[float]]] = {"none": [], "am": []}
    for pair in how.pairs:
        ends = functools.cache(lambda pair=pair: [robust_end(study, seed) for seed in pair])
        for method, values in rows.items():

            def find(method: str = method, seed: int = pair[0], ends: Any = ends) -> dict[str, Any]:
                return robust_curve(study, method, seed, ends())

            along_it = study.once(f"{pair[0]}-{pair[1]} robust {method}", find)["along"]
            values.append([f for name in ROWS for f in _summary(along_it[name])])
    print("| date | data | figure | unaligned | am-aligned | am-aligned − unaligned |")
    print("|---|---|---|---:|---:|---:|")
    plain, aligned = ([statistics.mean(column) for column in zip(*rows[m], strict=True)] for m in rows)
    gains = [f"{other - one:+.4f}" for one, other in zip(plain, aligned, strict=True)]
    if len(how.pairs) > 1:
        gains = paired(rows["am"], rows["none"])
    names = [f"{name}, {which}" for name in ROWS for which in SUMMARY]
    for name, one, other, gain in zip(names, plain, aligned, gains, strict=True):
        print(head(study.setting, name), f"{one:.4f} | {other:.4f} | {gain} |")


def robust_end(study: Study, seed: int) -> dict[str, torch.Tensor]:
    """One endpoint trained under attack."""
    how = ROBUST[study.setting.data]
    there = (study.endpoints or Path()) / f"{how.files}.{seed}.safetensors"
    if how.files and there.exists():
        kept = open_checkpoint(there)
        return {name: kept[name] for name in kept}
    made = {"attack": how.attack, "schedule": "late"} | how.endpoints
    return train(how.net, study.setting.data, seed=seed, **made).tensors


def robust_curve(study: Study, method: str, seed: int, ends: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """A curve trained under attack, and accuracies along it: clean, and under either attack."""
    how = ROBUST[study.setting.data]
    fitted = resolve_spec(None, ends)
    network = networks.resolve(None, fitted.spec, fitted.shapes)
    perms = identity(fitted.words)
    if method != "none":
        given = {"network": network, "data": study.train, "prove": False}
        perms = align(ends, fitted, method=method, **given).permutations[0]
    moved = permuted(ends[1], fitted, perms)
    problem = Problem(fitted, (ends[0], moved), seed=seed, network=network, data=study.train)
    found = train_curve(problem, perms, Training(attack=how.attack, **how.curve))
    curve = Curve("bezier", ends[0], moved, found.controls, fitted.ignored)
    test = open_data(study.setting.data, "test").subset(how.samples)
    figures: dict[str, list[float]] = {name: [] for name in ROWS}
    for k in range(how.points):
        study.place(network, curve, k / (how.points - 1))
        under = [test, *(attacked(test, network, attack) for attack in how.attacks)]
        for name, samples in zip(ROWS, under, strict=True):
            figures[name].append(evaluate(network, samples).accuracy)
    return {"along": figures, "losses": list(found.losses)}


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
    whole, shares = [], []
    for _ in range(9):
        spent = [0.0]

        def timed(*arguments: Any, spent: list[float] = spent) -> torch.Tensor:
            began = time.perf_counter()
            found = projected(*arguments)
            spent[0] += time.perf_counter() - began
            return found

        with mock.patch("rebasin_cli.matchers.relaxed.search.projected", timed):
            began = time.perf_counter()
            stepped(run, inputs, targets)
            whole.append(time.perf_counter() - began)
        shares.append(spent[0] / whole[-1])
    print(
        f"a step of PAM, mlp 3×512, batch 128: {1000 * statistics.median(whole):.0f} ms, "
        f"of which projections take {statistics.median(shares):.0%}"
    )


STUDIES = {"rates": rates, "steps": steps, "robust": robust, "projection": projection}


if __name__ == "__main__":
    main()
