"""What a choice between merges costs: candidates of many kinds of networks, rules, and test data.

    python benchmarks/regret.py record [--least 0] [--most 400]   adds cases to regret.jsonl, or goes on
    python benchmarks/regret.py rules                             tables of rules, from the recorded cases
    python benchmarks/regret.py gains                             what a second gains; one end alone
    python benchmarks/regret.py budgets                           fewer searches, by what each gains
    python benchmarks/regret.py floor                             what chance does to any choice

A case is a pair or three of networks that `rebasin train` does not make: a recipe of its own each (plain SGD,
no decay, dropout, norms, few samples, augmentation, label noise, convolutions, a transformer, regression,
characters) on images of 14×14, characters, or a function. Its candidates are methods with repairs; its truth
is what each loses on nine tenths of the test split. Rules may look at training samples that repairs and
methods were not given ("train", a tenth, as `auto` holds out), at these with noise or mixed ("noise 0.5",
"noise 1", "mixed 0.3", "mixed 0.5"), and at the tenth of the test split ("tenth"), at each: every candidate's
loss, its loss at its best temperature, its distance to the ends' mean output (from probabilities in nats, of
regression squared), its accuracy, and the standard errors of all differences of the first and the third.
Candidates of cases from 100 on have processor seconds (search, repair), and among them is the first end
alone, distilled towards all. Those that say how many samples were "tested" also have what learns and swaps
as candidates, from the best before, and all test samples there are as their truth.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _rows import line
from torch import Tensor, nn
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.averages.means import average
from rebasin_cli.datasets import Data, Samples, open_data
from rebasin_cli.datasets.held_out import held_out
from rebasin_cli.errors import RebasinError
from rebasin_cli.matchers import Problem, State
from rebasin_cli.matchers.polish.length import Length
from rebasin_cli.matchers.polish.search import polish
from rebasin_cli.matchers.portfolio import contest
from rebasin_cli.matchers.portfolio import gains as gains_of
from rebasin_cli.nets import vit
from rebasin_cli.repair import Repairs
from rebasin_cli.repair.calibration import temperature
from rebasin_cli.repair.distillation import distill
from rebasin_cli.spec.spec import FittedSpec
from rebasin_cli.symmetry.elements import Elements
from rebasin_cli.symmetry.permutation import permuted

TABLE = Path(__file__).with_name("regret.jsonl")
HELD, TESTED, TENTH = 2_000, 10_000, 300
METHODS = ("none", "wm", "am", "dual", "merge-many", "ste", "ste-mm", "polish")
MANY, GOES_ON = ("merge-many", "ste-mm"), ("ste", "ste-mm", "polish")  # the second from the best before
SWAPS = "60G"  # multiplications
FIRST = "first"  # in place of a method: the first end alone, distilled towards all
LOOKS = ("train", "noise 0.5", "noise 1", "mixed 0.3", "mixed 0.5", "tenth")


# ---------------------------------------------------------------------------------------------- trainings


@dataclass(frozen=True)
class Recipe:
    """How the ends of a case were trained."""

    data: str
    net: str
    width: int
    depth: int
    norm: str
    activation: str
    samples: int
    epochs: int
    optimizer: str
    rate: float
    decay: float
    dropout: float
    augmented: bool
    noise: float  # share of labels that are drawn anew
    models: int


def recipe(number: int) -> Recipe:
    """The recipe of a case: the same for the same number."""
    draw = random.Random(number)
    data = draw.choice(("mnist", "mnist", "mnist", "cifar", "characters", "function"))
    nets = (*["mlp"] * 6, *["cnn"] * 3, "vit") if data in ("mnist", "cifar") else ("mlp",)
    net = draw.choice(nets)
    optimizer, rate = draw.choice((("sgd", 0.05), ("momentum", 0.02), ("adam", 0.001), ("adam", 0.003)))
    if net == "vit":
        optimizer, rate = "adam", 0.001
    samples = draw.choice((500, 1_000, 2_000, 4_000, 6_000))
    steps = draw.choice((300, 600, 1_200)) if net == "mlp" else draw.choice((200, 400))
    return Recipe(
        data,
        net,
        width=draw.choice((16, 32, 64, 128))
        if net == "mlp"
        else draw.choice((8, 16))
        if net == "cnn"
        else 32,
        depth=draw.choice((1, 2, 3)) if net != "vit" else 1,
        norm=draw.choice(("none", "none", "layer", "batch")) if net != "vit" else "layer",
        activation=draw.choice(("relu", "relu", "relu", "tanh", "gelu")),
        samples=samples,
        epochs=max(1, round(steps * 50 / samples)),
        optimizer=optimizer,
        rate=rate,
        decay=draw.choice((0.0, 0.0, 1e-4, 5e-3)),
        dropout=draw.choice((0.0, 0.0, 0.2)) if net == "mlp" else 0.0,
        augmented=data in ("mnist", "cifar") and draw.random() < 0.2,
        noise=0.1 if data != "function" and draw.random() < 0.15 else 0.0,
        models=draw.choice((2, 2, 2, 3)),
    )


def built(it: Recipe, shape: Sequence[int], outputs: int) -> nn.Module:
    if it.net == "vit":
        return vit.build("vit", input_shape=shape, classes=outputs, width=it.width, depth=it.depth, patch=7)
    acts: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
    layers: list[nn.Module] = []
    if it.net == "cnn":
        channels = [shape[0], *(it.width * (1 + (k > 0)) for k in range(it.depth))]
        for k, (a, b) in enumerate(zip(channels, channels[1:], strict=False)):
            layers.append(nn.Conv2d(a, b, 3, stride=2 if k < 2 else 1, padding=1))
            if it.norm != "none":
                layers.append(nn.BatchNorm2d(b) if it.norm == "batch" else nn.GroupNorm(1, b))
            layers.append(acts[it.activation]())
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * b, outputs))
    sizes = [math.prod(shape), *[it.width] * it.depth]
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers.append(nn.Linear(a, b))
        if it.norm != "none":
            layers.append(nn.BatchNorm1d(b) if it.norm == "batch" else nn.LayerNorm(b))
        layers += [acts[it.activation](), *([nn.Dropout(it.dropout)] if it.dropout else [])]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], outputs))


def lost(outputs: Tensor, targets: Tensor) -> Tensor:
    """Every sample's loss: cross-entropy of classes, squares of a regression."""
    if targets.is_floating_point():
        return (outputs - targets).square().mean(1)
    return F.cross_entropy(outputs, targets, reduction="none")


def shifted(inputs: Tensor, rng: torch.Generator) -> Tensor:
    across, down = (int(torch.randint(-1, 2, (), generator=rng)) for _ in range(2))
    return inputs.roll((across, down), (-1, -2))


def trained(network: nn.Module, it: Recipe, data: Data, seed: int) -> dict[str, Tensor]:
    kinds: dict[str, Callable[..., Any]] = {
        "sgd": torch.optim.SGD,
        "momentum": lambda p, lr, weight_decay: torch.optim.SGD(p, lr, 0.9, weight_decay=weight_decay),
        "adam": torch.optim.AdamW,
    }
    optimizer = kinds[it.optimizer](network.parameters(), lr=it.rate, weight_decay=it.decay)
    rng = torch.Generator().manual_seed(seed)
    network.train()
    for _ in range(it.epochs):
        for inputs, targets in data.with_batch_size(50).shuffled(rng):
            given = shifted(inputs, rng) if it.augmented else inputs
            optimizer.zero_grad()
            lost(network(given), targets).mean().backward()
            optimizer.step()
    network.eval()
    return {name: value.clone() for name, value in network.state_dict().items()}


# --------------------------------------------------------------------------------------------------- data


def images(name: str, split: str) -> tuple[Tensor, Tensor]:
    data = open_data(name, split)
    some = data.subset(12_000 if split == "train" else TESTED, 0)
    inputs = torch.cat([given for given, _ in some])
    return F.adaptive_avg_pool2d(inputs, 14), some.source.targets


def characters() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Eight characters of this project's own pages, and the next one; the last fifth of each page is kept."""
    letters, parts = "abcdefghijklmnopqrstuvwxyz .,\n", ([], [])
    for page in sorted((Path(__file__).parent.parent / "docs").glob("*.md")):
        text = [letters.find(c) for c in page.read_text(encoding="utf-8").lower() if c in letters]
        cut = len(text) * 4 // 5
        for part, of in zip(parts, (text[:cut], text[cut:]), strict=True):
            part.extend(of[k : k + 9] for k in range(0, len(of) - 9, 7))
    rows = [torch.tensor(part) for part in parts]
    rng = torch.Generator().manual_seed(0)
    mixed = [row[torch.randperm(len(row), generator=rng)] for row in rows]
    given = [(F.one_hot(row[:, :8], len(letters)).float(), row[:, 8]) for row in mixed]
    return given[0], (given[1][0][:TESTED], given[1][1][:TESTED])


def function() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A random network's four outputs on 20 numbers, with noise."""
    rng = torch.Generator().manual_seed(0)
    first, then = torch.randn(20, 24, generator=rng) / 4, torch.randn(24, 4, generator=rng) / 4
    inputs = torch.randn(12_000 + TESTED, 20, generator=rng)
    targets = torch.tanh(inputs @ first).mul(2) @ then
    targets += 0.2 * torch.randn(targets.shape, generator=rng)
    return (inputs[:12_000], targets[:12_000]), (inputs[12_000:], targets[12_000:])


class Sets:
    """Each set's two splits, made once."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def of(self, it: Recipe, seed: int) -> tuple[Data, Data, int]:
        """Training samples as the recipe has them, test samples, and how many outputs."""
        if it.data not in self.made:
            name = {"mnist": "mnist", "cifar": "cifar10"}.get(it.data)
            own = characters if it.data == "characters" else function
            self.made[it.data] = tuple(images(name, s) for s in ("train", "test")) if name else own()
        train, test = self.made[it.data]
        outputs = train[1].shape[1] if train[1].is_floating_point() else int(train[1].max()) + 1
        rng = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(train[0]), generator=rng)[: it.samples]
        inputs, targets = train[0][chosen], train[1][chosen]
        if it.noise:
            anew = torch.rand(len(targets), generator=rng) < it.noise
            targets = torch.where(anew, torch.randint(outputs, targets.shape, generator=rng), targets)
        given = [(inputs, targets), test]
        splits = [
            Data(it.data, split, Samples(*part), None, outputs)
            for split, part in zip(("train", "test"), given, strict=True)
        ]
        return splits[0], splits[1], outputs


# ------------------------------------------------------------------------------------------------ figures


def looks(held: tuple[Tensor, Tensor], tenth: tuple[Tensor, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    inputs, targets = held
    rng = torch.Generator().manual_seed(0)
    noise = inputs.std() * torch.randn(inputs.shape, generator=rng)
    return {
        "train": held,
        "noise 0.5": (inputs + 0.5 * noise, targets),
        "noise 1": (inputs + noise, targets),
        "mixed 0.3": (0.7 * inputs + 0.3 * inputs.roll(1, 0), targets),
        "mixed 0.5": (0.5 * inputs + 0.5 * inputs.roll(1, 0), targets),
        "tenth": tenth,
    }


def outputs_of(network: nn.Module, inputs: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.cat([network(part) for part in inputs.split(500)])


def distance(outputs: Tensor, ends: Sequence[Tensor], classes: bool) -> Tensor:
    """Of every sample: what the outputs lose on the ends' mean beside what that has itself."""
    if not classes:
        return (outputs - torch.stack(list(ends)).mean(0)).square().mean(1)
    wanted = torch.stack([end.softmax(1) for end in ends]).mean(0)
    return (wanted * (wanted.clamp_min(1e-30).log() - outputs.log_softmax(1))).sum(1)


def rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def errors(values: Sequence[Tensor]) -> list[list[float | None]]:
    """The standard error of every difference: row k has those of k + 1, k + 2, …"""
    found = []
    for k, one in enumerate(values):
        apart = [(one - other).double() for other in values[k + 1 :]]
        found.append([rounded((it.std() / math.sqrt(len(it))).item()) for it in apart])
    return found


def figures(outputs: Sequence[Tensor], ends: Sequence[Tensor], targets: Tensor) -> dict[str, Any]:
    """At one look, in the order of candidates; of the ends their mean figures, and the ensemble's."""
    classes = not targets.is_floating_point()
    losses = [lost(it, targets) for it in outputs]
    apart = [distance(it, ends, classes) for it in outputs]
    mean = torch.stack(list(ends)).mean(0)
    row: dict[str, Any] = {
        "loss": [rounded(it.mean().item()) for it in losses],
        "errors": errors(losses),
        "apart": [rounded(it.mean().item()) for it in apart],
        "apart errors": errors(apart),
        "ends": [rounded(lost(it, targets).mean().item()) for it in ends],
        "ensemble": rounded(lost(mean, targets).mean().item()),
    }
    if classes:
        row["right"] = [rounded((it.argmax(1) == targets).float().mean().item()) for it in outputs]
        row["ends right"] = [rounded((it.argmax(1) == targets).float().mean().item()) for it in ends]
        scaled = [it / temperature(it, targets) for it in outputs]
        row["matched"] = [rounded(lost(it, targets).mean().item()) for it in scaled]
    return row


def search(
    method: str, models: Sequence[Any], spec: FittedSpec, network: nn.Module, data: Data, best: Any
) -> tuple[Sequence[Any], Any]:
    """Aligned models, and their elements; of a method that goes on with these, from the `best` ones."""
    loss = F.mse_loss if data.source.targets.is_floating_point() else None
    if method != "polish":
        given = {"network": network, "data": data.with_batch_size(250), "loss": loss, "prove": False}
        start = State(best) if method in GOES_ON else None
        found = rebasin_cli.align(*models, spec, method=method, start=start, **given)
        return found.models, found.elements
    problem = Problem(spec, tuple(models), network=network, data=data, loss=loss)
    length = Length.parse(SWAPS, steps=False)
    orders = polish(problem, [it.permutations for it in best], length).permutations
    moved = (permuted(model, spec, order) for model, order in zip(models[1:], orders, strict=True))
    return (models[0], *moved), tuple(map(Elements, orders))


def case(number: int, sets: Sets) -> dict[str, Any]:
    it = recipe(number)
    train, test, outputs = sets.of(it, number)
    torch.manual_seed(number)
    shape = tuple(train.source.inputs.shape[1:])
    models, network = [], nn.Module()
    for k in range(it.models):
        network = built(it, shape, outputs)
        models.append(trained(network, it, train, 100 * number + k))
    spec = rebasin_cli.infer_spec(network, train.source.inputs[:2], prove=False).fitted
    rest, held = held_out(train, number)
    drawn = held.subset(HELD, 0).source
    cut = min(TENTH, test.samples // 10)
    tenth, truth = (test.source.at(part) for part in (torch.arange(cut), torch.arange(cut, test.samples)))
    seen = looks((drawn.inputs, drawn.targets), (tenth.inputs, tenth.targets))
    seen["test"] = (truth.inputs, truth.targets)

    def all_looks() -> dict[str, Tensor]:
        return {name: outputs_of(network, inputs) for name, (inputs, _) in seen.items()}

    ends = []
    for model in models:
        networks.load(network, model)
        ends.append(all_looks())
    normed = networks.has_running_statistics(network)
    open_ = ("reset", "refit") if normed else ("none", "repair", "refit")
    candidates, given, seconds = [], [], []
    measured = rest.subset(2_500, 0).with_batch_size(250).mixed(0)
    best: tuple[float, Any] = (math.inf, None)  # before a repair fits its weights: loss, elements
    for method in METHODS:
        if len(models) > 2 if method in ("am", "ste") else len(models) == 2 and method in MANY:
            continue
        moved, elements, began = models, None, time.process_time()
        if method != "none":
            moved, elements = search(method, models, spec, network, rest, best[1])
        searched = time.process_time() - began
        for how in open_[:1] if method == "none" else (*open_, "distill"):
            networks.load(network, average(moved))
            began = time.process_time()
            if how != "none":
                some = rest.subset(1_000, 0).with_batch_size(250).mixed(0) if how == "refit" else measured
                some = rest.with_batch_size(250).mixed(0) if how == "distill" else some
                Repairs(how, moved, some).apply(network, [1 / len(moved)] * len(moved))
            seconds.append((searched, time.process_time() - began))
            candidates.append((method, how))
            given.append(all_looks())
            loss = lost(given[-1]["train"], drawn.targets).mean().item()
            if elements is not None and how == open_[0] and loss < best[0]:
                best = loss, elements
    networks.load(network, models[0])
    began = time.process_time()
    distill(network, models, rest.with_batch_size(250).mixed(0))
    seconds.append((0.0, time.process_time() - began))
    candidates.append((FIRST, "distill"))
    given.append(all_looks())
    spent = [[round(it, 3) for it in pair] for pair in seconds]
    told = {
        name: figures([one[name] for one in given], [end[name] for end in ends], targets)
        for name, (_, targets) in seen.items()
    }
    return {
        "case": number,
        **vars(it),
        "held": len(drawn),
        "tested": len(truth),
        "candidates": candidates,
        "seconds": spent,
        "looks": told,
    }


def record(least: int, most: int, nets: Sequence[str]) -> None:
    torch.set_num_threads(1)
    done = {row["case"] for row in read()} if TABLE.exists() else set()
    sets = Sets()
    for number in range(least, most):
        if number in done or recipe(number).net not in nets:
            continue
        began = time.process_time()
        try:
            row = case(number, sets)
        except RebasinError as error:
            print(number, "not measured:", error.message.splitlines()[0], flush=True)
            continue
        with TABLE.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
        it = recipe(number)
        print(number, it.data, it.net, it.width, it.norm, f"{time.process_time() - began:.1f} s", flush=True)


def read() -> list[dict[str, Any]]:
    return [json.loads(text) for text in TABLE.read_text(encoding="utf-8").splitlines()]


# -------------------------------------------------------------------------------------------------- rules

Row = dict[str, Any]
Rule = Callable[[Row], int]


def able(row: Row) -> list[int]:
    """The candidates that `auto` has, the default first."""
    return [k for k, one in enumerate(row["candidates"]) if row.get("within", SETS["all candidates"])(*one)]


def values(row: Row, look: str, figure: str) -> list[float]:
    found = row["looks"][look].get(figure) or row["looks"][look]["loss"]  # a regression has no temperature
    return [math.inf if value is None else value for value in found]


def error(row: Row, look: str, figure: str, one: int, other: int) -> float:
    kind = "apart errors" if figure == "apart" else "errors"
    first, second = sorted((one, other))
    return row["looks"][look][kind][first][second - first - 1] or 0.0


def least(look: str, figure: str = "loss", sure: float = 0.0, per: float = 0.0) -> Rule:
    """The least figure, if it is surely less than the default's, by errors and a share of that."""

    def rule(row: Row) -> int:
        seen, (default, *others) = values(row, look, figure), able(row)
        best = min((default, *others), key=lambda k: seen[k])
        if best == default:
            return default
        gain = seen[default] - seen[best]
        return (
            best
            if gain > max(sure * error(row, look, figure, default, best), per * seen[default])
            else default
        )

    return rule


def total(*parts: tuple[float, str, str]) -> Rule:
    """The least sum of figures (weight, look, figure); of other losses than cross-entropy the loss alone."""

    def rule(row: Row) -> int:
        known = parts if row["data"] != "function" else [part for part in parts if part[2] == "loss"]
        seen = [(weight, values(row, look, figure)) for weight, look, figure in known]
        return min(able(row), key=lambda k: sum(weight * one[k] for weight, one in seen))

    return rule


def pulled(weight: float, look: str = "train", apart: str = "") -> Rule:
    """The least of the loss and so many times the distance to the ends, there or at another look."""
    return total((1.0, look, "loss"), (weight, apart or look, "apart"))


def doubted(look: str, sure: Rule, doubtful: Rule) -> Rule:
    """One rule, and another where ends lose more than chance at a look: they are sure of wrong answers."""

    def rule(row: Row) -> int:
        seen, chances = row["looks"][look], {"mnist": 10, "cifar": 10, "characters": 30}
        ends = [math.inf if value is None else value for value in seen["ends"]]
        chance = math.log(chances[row["data"]]) if row["data"] in chances else math.inf
        return (doubtful if sum(ends) / len(ends) > chance else sure)(row)

    return rule


def simplest(look: str, figure: str = "loss", sure: float = 1.0) -> Rule:
    """The first in order (repairs that change least come first) that the least does not surely beat."""

    def rule(row: Row) -> int:
        seen, order = values(row, look, figure), ("none", "reset", "repair", "refit", "distill")
        there = sorted(able(row), key=lambda k: order.index(row["candidates"][k][1]))
        best = min(there, key=lambda k: seen[k])
        near = (
            k for k in there if k == best or seen[k] - seen[best] <= sure * error(row, look, figure, k, best)
        )
        return next(near)

    return rule


def before(row: Row) -> int:
    """As 0.2.0 chose: 0.03 nats and two errors against no repair, 0.01 against a repair, matched falls."""
    seen, matched = values(row, "train", "loss"), values(row, "train", "matched")
    (first, *others), how = able(row), [how for _, how in row["candidates"]]
    order, found = ("none", "reset", "repair", "refit", "distill"), first
    for k in others:
        fits = order.index(how[k]) > order.index(how[found]) and how[found] not in ("refit", "distill")
        margin = (0.03 if how[found] in ("none", "reset") else 0.01) if fits else 0.0
        default = row["candidates"][found] == row["candidates"][first] or (
            row["candidates"][found][0] == "wm" and how[found] == "repair"
        )
        sure = 2.0 if default or how[k] != how[found] else 0.0
        if row["data"] == "function":
            margin = 0.0
        gain = seen[found] - seen[k]
        if gain > max(margin, sure * error(row, "train", "loss", found, k)) and matched[k] < matched[found]:
            found = k
    return found


WEIGHTS = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the distance
RULES: dict[str, Rule] = {
    "never: wm, not repaired": lambda row: able(row)[0],
    "before: 0.03 nats and 2 errors, train": before,
    **{f"least loss: {look}": least(look) for look in LOOKS},
    "least loss at the best temperature: train": least("train", "matched"),
    **{f"least distance: {look}": least(look, "apart") for look in LOOKS[:4]},
    **{
        f"least loss, {k:g} errors: {look}": least(look, sure=k)
        for look in ("train", "tenth")
        for k in (1, 2)
    },
    "first within 1 error of the least: train": simplest("train"),
    **{f"loss + {w:g} × distance: {look}": pulled(w, look) for look in ("train", "tenth") for w in WEIGHTS},
    **{f"loss (train) + 2 × distance ({look})": pulled(2, apart=look) for look in LOOKS[1:5]},
    **{
        f"loss + 2 × distance: train; loss: noise 1 where ends lose more than chance: {look}": doubted(
            look, pulled(2), least("noise 1")
        )
        for look in ("noise 1", "mixed 0.5")
    },
}


def crossed(rows: Sequence[Row]) -> tuple[list[float], dict[str, float]]:
    """The regret of every case by the weight that is best on the others' data and nets, and these weights."""
    found, taken = [], {}
    for row in rows:
        kind = kind_of(row)
        if kind not in taken:
            others = [it for it in rows if kind_of(it) != kind]
            taken[kind] = min(WEIGHTS, key=lambda w: sum(regrets(others, pulled(w))[0]))
        found.append(regrets([row], pulled(taken[kind]))[0][0])
    return found, taken


def kind_of(row: Row) -> str:
    """What recipes have in common that are left out together."""
    return f"{row['data']} {row['net']}"


def regrets(
    rows: Sequence[Row], rule: Rule, figure: str = "loss"
) -> tuple[list[float], list[float], list[bool]]:
    """Nats (or squares) and points above the least, and whether that is above 0.003 by more than 2 errors."""
    found, points, wrong = [], [], []
    for row in rows:
        seen, there = values(row, "test", figure), able(row)
        chosen, best = rule(row), min(there, key=lambda k: seen[k])
        found.append(seen[chosen] - seen[best])
        right = row["looks"]["test"].get("right")
        points.append(0.0 if right is None else 100 * (max(right[k] for k in there) - right[chosen]))
        wrong.append(chosen != best and found[-1] > 0.003 + 2 * error(row, "test", "loss", chosen, best))
    return found, points, wrong


SETS: dict[str, Callable[[str, str], bool]] = {
    "all candidates": lambda method, how: method not in ("none", FIRST),
    "without distillation": lambda method, how: method != "none" and how != "distill",
    "wm, repaired or not": lambda method, how: method == "wm" and how in ("none", "repair"),
    "methods, not repaired": lambda method, how: method != "none" and how in ("none", "reset"),
}


def rules() -> None:
    """A table for every set of candidates: all, and those that a command may have."""
    for name, within in SETS.items():
        rows = [row for every in read() if len(able(row := every | {"within": within})) > 1]
        print(f"\n{name}: {len(rows)} cases\n")
        table(rows)


def table(rows: Sequence[Row]) -> None:
    columns = (
        "mean regret",
        "points",
        "within 0.003",
        "over 0.01",
        "largest",
        "surely wrong",
        "cooled, mean",
    )
    line("rule", *columns, "cooled, largest")
    print("|---" * (len(columns) + 2) + "|")
    for name, rule in RULES.items():
        regret, points, wrong = regrets(rows, rule)
        cooled = regrets(rows, rule, "matched")[0]
        line(
            name,
            f"{sum(regret) / len(rows):.4f}",
            f"{sum(points) / len(rows):.2f}",
            f"{sum(it <= 0.003 for it in regret) / len(rows):.0%}",
            sum(it > 0.01 for it in regret),
            f"{max(regret):.4f}",
            sum(wrong),
            f"{sum(cooled) / len(rows):.4f}",
            f"{max(cooled):.4f}",
        )
    regret, weights = crossed(rows)
    within = sum(it <= 0.003 for it in regret) / len(rows)
    told = f"{min(weights.values()):g} … {max(weights.values()):g}"
    print(f"\nweight by other kinds ({told}): {sum(regret) / len(rows):.4f}, {within:.0%}, {max(regret):.4f}")


STEPS = {  # what comes after what
    "wm, repair": (("wm", "none"), ("wm", "repair")),
    "wm, refit": (("wm", "none"), ("wm", "refit")),
    "wm, refit ": (("wm", "reset"), ("wm", "refit")),
    "wm, distill after a refit": (("wm", "refit"), ("wm", "distill")),
    "am, refit beside wm's": (("wm", "refit"), ("am", "refit")),
    "dual, refit beside wm's": (("wm", "refit"), ("dual", "refit")),
    "am, refit after a distillation": (("wm", "distill"), ("am", "refit")),
    "am, distill beside wm's": (("wm", "distill"), ("am", "distill")),
    "dual, distill beside wm's": (("wm", "distill"), ("dual", "distill")),
    **{
        f"{name}, {how} beside wm's": (("wm", how), (name, how))
        for name in ("ste", "polish")
        for how in ("refit", "distill")
    },
}


def cost(row: Row, look: str = "train") -> list[float]:
    """What a choice goes by."""
    parts = zip(values(row, look, "loss"), values(row, look, "apart"), strict=True)
    return [loss + (0 if row["data"] == "function" else 2 * apart) for loss, apart in parts]


def gains() -> None:
    """What each step gains a second, of held-out cost and on test data; one end alone beside the merge."""
    rows = [row for row in read() if "seconds" in row]
    line("network", "step", "cases", "nats a second", "gained on test", "by more than 0.003", "most")
    print("|---" * 7 + "|")
    for net in dict.fromkeys(row["net"] for row in rows):
        for step, pair in STEPS.items():
            gained(net, step, pair, [row for row in rows if row["net"] == net])
    one_end(rows)


def gained(net: str, step: str, pair: Any, rows: Sequence[Row]) -> None:
    found = []
    for row in rows:
        there = [tuple(it) for it in row["candidates"]]
        if not {*pair} <= {*there}:
            continue
        before, after = map(there.index, pair)
        searched, repaired = row["seconds"][after]
        took = repaired + searched * (pair[0][0] != pair[1][0])
        test = values(row, "test", "loss")
        found.append(((cost(row)[before] - cost(row)[after]) / max(took, 1e-3), test[before] - test[after]))
    if not found:
        return
    second, test = (sorted(it) for it in zip(*found, strict=True))
    middle = len(found) // 2
    line(
        net,
        step.strip(),
        len(found),
        f"{second[middle]:.3f}",
        f"{test[middle]:.4f}",
        f"{sum(it > 0.003 for it in test) / len(test):.0%}",
        f"{test[-1]:.4f}",
    )


Parts = tuple[dict[tuple[str, str], int], list[float], float]


def parts(row: Row) -> Parts:
    """Where each candidate is, what it costs, and what the ends' mean answer loses, if that is known."""
    whole = row["looks"]["train"]["ensemble"] if row["data"] != "function" else -math.inf
    return {(method, how): k for k, (method, how) in enumerate(row["candidates"])}, cost(row), whole


def quick(at: dict[tuple[str, str], int], method: str) -> list[int]:
    return [k for (name, how), k in at.items() if name == method and how != "distill"]


def shares(rows: Sequence[Row]) -> dict[str, tuple[float, float, int]]:
    """Of what is left after wm and its quick repairs: what a search takes, alone and beside a distillation.

    The median, since of few cases one in which a distillation does harm would say it all.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        at, costs, whole = parts(row)
        first = min(costs[k] for k in quick(at, "wm"))
        left, trained = first - whole, min(first, costs[at["wm", "distill"]])
        for method in METHODS[2:]:
            if not (there := quick(at, method)) or not 0 < left < math.inf:
                continue
            best = min(costs[k] for k in there)
            both = min(best, costs[at[method, "distill"]]) if (method, "distill") in at else trained
            found.setdefault(method, []).append(
                (max(0.0, first - best) / left, max(0.0, trained - both) / left)
            )
    middle = {name: [median(each) for each in zip(*its, strict=True)] for name, its in found.items()}
    return {name: (alone, beside, len(found[name])) for name, (alone, beside) in middle.items()}


def replayed(row: Row, budget: float, known: dict[str, Any] | None) -> tuple[float, float]:
    """What `auto` loses on test data and the seconds that it takes: all in turn, or by what is `known`.

    Searches in their order, each with its quick repairs, while the time of a distillation of the best is
    kept back; none where next to nothing is left.
    """
    at, costs, whole = parts(row)
    done, spent = quick(at, "wm"), row["seconds"]
    seconds = spent[done[0]][0] + sum(spent[k][1] for k in done)
    loss = values(row, "train", "loss")

    def best() -> int:
        return min(done, key=lambda k: costs[k])

    def idle() -> bool:
        few = known is not None and loss[best()] - whole < contest.LITTLE
        return few or costs[best()] - whole < contest.LITTLE

    last = spent[at["wm", "distill"]][1]
    kept = last if seconds + last <= budget and not idle() else 0.0
    for method in ("merge-many", "dual", "am", "ste", "ste-mm", "polish"):
        there, left = quick(at, method), costs[best()] - whole
        more = sum(spent[k][1] for k in there) + (spent[there[0]][0] if there else 0.0)
        if not there or left < contest.LITTLE or seconds + more + kept > budget:
            continue
        if known is not None and known.get(method, (1, 1))[kept > 0] * left < gains_of.NOISE:
            continue
        done, seconds = [*done, *there], seconds + more
        kept = 0.0 if idle() else kept
    end = at.get((row["candidates"][best()][0], "distill"))
    if kept and end is not None:
        done, seconds = [*done, end], seconds + spent[end][1]
    return values(row, "test", "loss")[best()], seconds


def budgets() -> None:
    """Shares of what is left; and all searches in turn beside those that they let be worth their time."""
    rows = [row for row in read() if "seconds" in row]
    line("search", "cases", "of what is left", "beside a distillation")
    print("|---" * 4 + "|")
    for name, (alone, beside, cases) in shares(rows).items():
        line(name, cases, f"{alone:.2f}", f"{beside:.2f}")
    others = {
        kind: shares([it for it in rows if kind_of(it) != kind]) for kind in {kind_of(row) for row in rows}
    }
    print()
    line(
        "cases", "budget, s", "searches", "regret", "within 0.003", "over 0.01", "seconds", "worse", "better"
    )
    print("|---" * 9 + "|")
    learning = [row for row in rows if "tested" in row]
    for name, some in (("all", rows), ("with what learns and swaps", learning)):
        for budget in (1.0, 2.0, 4.0, 8.0, math.inf):
            every = [replayed(row, budget, None) for row in some]
            fewer = [replayed(row, budget, others[kind_of(row)]) for row in some]
            for told, found in (("in turn", every), ("worth their time", fewer)):
                lost = [
                    loss - min(values(row, "test", "loss")[k] for k in able(row))
                    for row, (loss, _) in zip(some, found, strict=True)
                ]
                apart = [one - other for (one, _), (other, _) in zip(found, every, strict=True)]
                line(
                    f"{name}, {len(some)}",
                    f"{budget:g}",
                    told,
                    f"{sum(lost) / len(some):.4f}",
                    f"{sum(it <= 0.003 for it in lost) / len(some):.0%}",
                    sum(it > 0.01 for it in lost),
                    f"{sum(seconds for _, seconds in found) / len(some):.2f}",
                    sum(it > 0.003 for it in apart),
                    sum(it < -0.003 for it in apart),
                )


UNSEEN = (75, 150, 300, 600, 1_200, 2_000, 3_000)
TENTH = 300  # samples, of nearly all cases


def floor() -> None:
    """How often the best candidate itself would be judged worse than another, on other test samples.

    Means on test data are taken for the truth, and drawn anew with the errors of all differences: real
    differences are smaller than measured ones, so this is the least that chance does. And what chance leaves
    of a choice by the least loss, on so many samples that no end has seen.
    """
    torch.manual_seed(0)
    over: dict[float, list[float]] = {0.003: [], 0.01: []}
    for row in (rows := read()):
        mean, drawn = again(row, "test", row.get("tested", 2_700) / 2_700)
        judged = drawn[:, mean.argmin()] - drawn.min(1).values
        for most, found in over.items():
            found.append((judged > most).double().mean().item())
    told = ", ".join(f"{sum(its) / len(rows):.1%} over {most:g}" for most, its in over.items())
    print(f"the best of {len(rows)} cases, judged on 2,700 other samples: {told}\n")
    line("unseen samples", "mean regret", "within 0.003", "over 0.01")
    print("|---" * 4 + "|")
    for samples in UNSEEN:
        lost = []
        for row in rows:
            mean, drawn = again(row, "tenth", TENTH / samples)
            lost.append(mean[drawn.argmin(1)] - mean.min())
        every = torch.cat(lost)
        near, far = (every <= 0.003).double().mean().item(), (every > 0.01).double().mean().item()
        line(f"{samples:,}", f"{every.mean().item():.4f}", f"{near:.1%}", f"{far:.1%}")


def again(row: Row, look: str, share: float) -> tuple[Tensor, Tensor]:
    """What each candidate loses on test data, and draws of it (2,000, candidates) with a look's errors.

    `share`: of the variances of its differences.
    """
    there = able(row)
    apart = torch.tensor(
        [[error(row, look, "loss", a, b) ** 2 if a != b else 0.0 for b in there] for a in there]
    ).double()
    apart *= share
    shared = (apart[:, :1] + apart[:1, :] - apart) / 2  # of differences to the first
    sizes, along = torch.linalg.eigh(shared)
    spread = along * sizes.clamp_min(0).sqrt()
    mean = torch.tensor([values(row, "test", "loss")[k] for k in there]).double()
    return mean, mean + torch.randn(2_000, len(there), dtype=torch.float64) @ spread.T


def one_end(rows: Sequence[Row]) -> None:
    """One end distilled towards all in place of the merge: where it costs less, or surely does."""
    taken: dict[str, list[float]] = {"where it costs less": [], "by 1 error": [], "by 2 errors": []}
    cases = 0
    for row in rows:
        there = [tuple(it) for it in row["candidates"]]
        if (FIRST, "distill") not in there or row["data"] == "function":
            continue
        cases, one, costs = cases + 1, there.index((FIRST, "distill")), cost(row)
        merge = min(able(row), key=lambda k: costs[k])
        wide = error(row, "train", "loss", one, merge) + 2 * error(row, "train", "apart", one, merge)
        test = values(row, "test", "loss")
        for sure, gains_ in enumerate(taken.values()):
            if costs[merge] - costs[one] > sure * wide:
                gains_.append(test[merge] - test[one])
    print(f"\none end, distilled towards all, in place of the merge of least cost: {cases} cases\n")
    line("taken", "cases", "gained on test, mean", "better", "worst", "most")
    print("|---" * 6 + "|")
    for name, its in taken.items():
        if its:
            mean, better = sum(its) / len(its), sum(it > 0 for it in its)
            line(name, len(its), f"{mean:.4f}", better, f"{min(its):.4f}", f"{max(its):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("record", "rules", "gains", "budgets", "floor"))
    parser.add_argument("--least", type=int, default=0, help="number of the first case")
    parser.add_argument("--most", type=int, default=300)
    parser.add_argument("--nets", nargs="+", default=["mlp", "cnn", "vit"], help="record only these")
    asked = parser.parse_args()
    if asked.what == "record":
        record(asked.least, asked.most, asked.nets)
    else:
        {"rules": rules, "gains": gains, "budgets": budgets, "floor": floor}[asked.what]()


if __name__ == "__main__":
    main()
