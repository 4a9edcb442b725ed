"""What matching and repairs do for the middle of the path between trained endpoints: loss and accuracy.

    python benchmarks/repair.py --data mnist --pairs a.safetensors:b.safetensors … [--cache FILE]
        [--methods wm am dual am:cost=inner,at=pre dual:mix=0.25 …] [--repairs none repair …]

Every row is measured at λ = ½ on the whole test split, logits for logits: the endpoints, the mean without
matching, with a random permutation, and with each method, each with each repair that the network admits;
with a temperature fitted on training samples; and the mean of both endpoints' logits, at twice the cost.
Matching looks at 10,000 training samples (methods that train, at all), repairs at 2,560 others drawn with
the seed. With several pairs these are means over pairs with their 95 % intervals by Student's t, and so are
the differences to wm with the same repair (of wm: to wm without), pair by pair. What is in --cache is not
measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
import yaml
from _rows import environment, line
from scipy.stats import t as student

import rebasin_cli
from rebasin_cli import matchers, networks
from rebasin_cli.datasets import open_data
from rebasin_cli.errors import NetworkError
from rebasin_cli.networks.classes import accuracies, cross_entropies
from rebasin_cli.networks.forward import call, evaluating
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.library import resolve_spec
from rebasin_cli.symmetry import permutation

MATCH, RESET, BATCH, FITTED = 10_000, 2_560, 256, 10_000  # samples; of one batch of a repair
METHODS, REPAIRS = ("wm", "am", "dual"), ("none", "reset", "repair", "rescale", "reshift", "bias")
CONTROLS = ("naive", "random permutation")
Score = tuple[float, float]


def score(outputs: torch.Tensor, targets: torch.Tensor) -> Score:
    loss, right = (each(outputs, targets).mean().item() for each in (cross_entropies, accuracies))
    return loss, right


class Pair:
    """Two endpoints of one architecture, their network and data; what is computed from them."""

    loss: Any = None  # cross-entropy
    score = staticmethod(score)

    def __init__(self, files: str, data: str, device: str):
        self.paths = [Path(path) for path in files.split(":")]
        opened = [rebasin_cli.open_checkpoint(path) for path in self.paths]
        self.models = [dict(model) for model in opened]
        self.fitted = resolve_spec(None, self.models)
        network = networks.resolve(None, self.fitted.spec, self.fitted.shapes)
        self.network, self.device = network.float().to(device), device
        vocabulary = opened[0].metadata.get("rebasin.vocabulary")  # of text, which nothing normalises
        normalize = None if vocabulary else opened[0].metadata.get("rebasin.normalization")
        how = {"normalize": normalize, "vocabulary": vocabulary}
        self.train, self.test = (open_data(data, split, **how) for split in ("train", "test"))
        self.name = f"{data} {' '.join(path.stem for path in self.paths)}"

    def permutations(self, method: str) -> permutation.Permutations | None:
        """None leaves the second model as it is."""
        if method == CONTROLS[0]:
            return None
        if method == CONTROLS[1]:
            rng = generator(0, "control")
            return permutation.random(self.fitted.words, rng, within=self.fitted.within)
        name, options = parsed(method)
        samples = getattr(matchers.registry.get(name), "SAMPLES", MATCH)  # methods that train want all
        found = rebasin_cli.align(
            *self.models,
            self.fitted,
            method=name,
            options=options,
            network=self.network,
            data=self.train if samples is None else self.train.subset(samples, 0),
            prove=False,
            device=self.device,
        )
        return found.permutations[0]

    def merged(self, permutations: permutation.Permutations | None, how: str) -> Mapping[str, torch.Tensor]:
        return rebasin_cli.merge(
            self.models,
            self.fitted,
            method="none",
            permutations=None if permutations is None else [permutations],
            repair_with=how,
            network=self.network,
            train=self.train.subset(RESET, 1).with_batch_size(BATCH),
            device=self.device,
        ).tensors

    def logits(self, tensors: Mapping[str, torch.Tensor], data: Any) -> tuple[torch.Tensor, torch.Tensor]:
        network = networks.load(self.network, tensors).to(self.device)
        with evaluating(network), torch.inference_mode():
            found = [(call(network, inputs.to(self.device)).cpu(), targets) for inputs, targets in data]
        return torch.cat([outputs for outputs, _ in found]), torch.cat([targets for _, targets in found])

    def tempered(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Score, Score]:
        """On the test split, as they are and divided by the temperature that suits training samples."""
        outputs, targets = self.logits(tensors, self.test)
        fitted, classes = self.logits(tensors, self.train.subset(FITTED, 2))
        t = rebasin_cli.temperature(fitted.movedim(1, -1).flatten(0, -2), classes.flatten())
        return score(outputs, targets), score(outputs / t, targets)

    def ends(self) -> dict[str, Score]:
        (first, targets), (second, _) = (self.logits(model, self.test) for model in self.models)
        both = zip(score(first, targets), score(second, targets), strict=True)
        ensemble = score((first + second) / 2, targets)
        return {
            "endpoints, mean": tuple(map(statistics.mean, both)),
            "logit ensemble (twice the cost)": ensemble,
        }


def parsed(method: str) -> tuple[str, Any]:
    """`am:cost=l2,at=pre` to the method's name and its Options."""
    name, _, given = method.partition(":")
    pairs = (item.split("=") for item in given.split(",") if item)
    return name, matchers.registry.get(name).Options(**{key: yaml.safe_load(value) for key, value in pairs})


def measure(pair: Pair, methods: list[str], repairs: list[str], cache: dict[str, Any], save: Any) -> dict:
    """Row → loss and accuracy of one pair; None for a repair that this network does not admit."""
    statistics_too = networks.has_running_statistics(pair.network)
    admitted = ["none", "reset"] if statistics_too else ["none", "repair", "rescale", "reshift", "bias"]
    repairs = [how for how in repairs if how in admitted]
    done = cache.setdefault(pair.name, {})
    if "endpoints, mean" not in done:
        done |= pair.ends()
        save()
    for method in [*CONTROLS, *methods]:
        wanted = [row_of(method, how) for how in repairs]
        if all(row in done for row in wanted):
            continue
        perms = pair.permutations(method)
        for how, row in zip(repairs, wanted, strict=True):
            try:
                tensors = pair.merged(perms, how)
            except NetworkError:
                done[row] = done[f"{row} + temperature"] = None
                continue
            done[row], done[f"{row} + temperature"] = pair.tempered(dict(tensors))
        save()
    return done


def row_of(method: str, how: str) -> str:
    return method if how == "none" else f"{method} + {how}"


def table(found: list[dict[str, Any]], methods: list[str], repairs: list[str]) -> None:
    line("date", "row", "test loss", "test accuracy", "against wm, points")
    print("|" + "---|" * 5)
    for row, base in rows(methods, repairs):
        values = [done.get(row) for done in found]
        if None in values:
            continue
        losses, accuracies = zip(*values, strict=True)
        against = [done.get(base) for done in found]
        apart = ""
        if base and None not in against:
            differences = [100 * (a - b[1]) for a, b in zip(accuracies, against, strict=True)]
            apart = interval(differences, "+.2f", ".2f")
        shown = row.replace(":", ", ", 1).replace(",", ", ").replace(",  ", ", ").replace("=", " ")
        line(date.today(), shown, interval(losses, ".4f", ".4f"), interval(accuracies, ".4f", ".4f"), apart)


def rows(methods: list[str], repairs: list[str]) -> Iterator[tuple[str, str]]:
    """The rows in their order, each with the one that it is compared to."""
    yield "endpoints, mean", ""
    yield "logit ensemble (twice the cost)", ""
    for method in [*CONTROLS, *methods]:
        for how in repairs:
            tempered = [""] if how not in ("none", "reset", "repair") else ["", " + temperature"]
            for more in tempered:
                base = row_of("wm", "none" if method == "wm" else how)
                yield row_of(method, how) + more, base * (row_of(method, how) + more != "wm")


def interval(values: Any, form: str, spread: str) -> str:
    """The mean, and the half width of its 95 % interval where there are several values."""
    values = list(values)
    mean = format(statistics.mean(values), form)
    if len(values) == 1:
        return mean
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean} ± {half:{spread}}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--pairs", nargs="+", required=True, metavar="A:B")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--repairs", nargs="+", default=list(REPAIRS), choices=REPAIRS)
    parser.add_argument("--cache", type=Path, help="a JSON file with what was measured before")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    for method in asked.methods:
        parsed(method)  # a wrong option speaks before an hour of measuring
    cache = json.loads(asked.cache.read_text()) if asked.cache and asked.cache.exists() else {}

    def save() -> None:
        if asked.cache:
            asked.cache.write_text(json.dumps(cache, indent=1))

    print(environment(), flush=True)
    found = [
        measure(Pair(files, asked.data, asked.device), asked.methods, asked.repairs, cache, save)
        for files in asked.pairs
    ]
    table(found, asked.methods, asked.repairs)


if __name__ == "__main__":
    main()
