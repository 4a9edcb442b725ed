"""The cases of `regret.py`: how their ends are trained, their candidates, and what is known of each."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
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
