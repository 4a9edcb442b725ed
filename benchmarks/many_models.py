"""Merges of many trained models: test loss and accuracy of the mean against how many they are.

    python benchmarks/many_models.py --data mnist --group a.safetensors b.safetensors … [--group …]
        [--counts 2 3 …] [--methods wm merge-many universe ste-mm ste-mm:share=1 …] [--cache FILE]

Each method matches the first n models of a group, and their mean is measured on the whole test split, with
BatchNorm statistics re-estimated on 2,560 training samples. With several groups, figures are means over
groups with 95 % intervals by Student's t, and "against the first" is the paired difference to the method that
is named first. "gap" is the merged loss minus the mean loss of the models. What is in --cache is not measured
again; seconds are those of the search, on whatever else the machine did.
"""

from __future__ import annotations

import argparse
import json
import statistics
from datetime import date
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line, timed
from repair import BATCH, MATCH, RESET, interval, parsed

import rebasin_cli
from rebasin_cli import matchers, networks
from rebasin_cli.datasets import open_data
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.spec.library import resolve_spec

COLUMNS = ("models", "method", "test loss", "accuracy", "gap", "against the first, points", "seconds")


class Group:
    """Trained models of one architecture with their network and data."""

    def __init__(self, paths: list[Path], data: str):
        self.name = " ".join(path.stem for path in paths)
        opened = [rebasin_cli.open_checkpoint(path) for path in paths]
        self.models = [dict(model) for model in opened]
        self.fitted = resolve_spec(None, self.models)
        self.network = networks.resolve(None, self.fitted.spec, self.fitted.shapes).float()
        normalize = opened[0].metadata.get("rebasin.normalization")
        self.train, self.test = (open_data(data, split, normalize=normalize) for split in ("train", "test"))

    def end(self, k: int) -> list[float]:
        scores = evaluate(networks.load(self.network, self.models[k]), self.test)
        return [scores.loss, scores.accuracy]

    def merged(self, method: str, count: int) -> list[float]:
        """Loss and accuracy on test data of the first models' mean, and the seconds of the search."""
        name, options = parsed(method)
        module = matchers.registry.get(name)
        samples = getattr(module, "SAMPLES", MATCH)
        needs: dict[str, Any] = {}
        if module.NEEDS:
            data = self.train if samples is None else self.train.subset(samples, 0)
            needs = {"network": self.network, "data": data, "prove": False}
        models = self.models[:count]
        seconds, found = timed(
            lambda: rebasin_cli.align(*models, self.fitted, method=name, options=options, **needs)
        )
        merged = rebasin_cli.merge(
            found.models,
            self.fitted,
            method="none",
            repair_with="reset" if self.fitted.statistics else "none",
            network=self.network,
            train=self.train.subset(RESET, 1).with_batch_size(BATCH),
        )
        scores = evaluate(networks.load(self.network, dict(merged.tensors)), self.test)
        return [scores.loss, scores.accuracy, seconds]


def measure(group: Group, asked: argparse.Namespace, cache: dict[str, Any], save: Any) -> dict[str, Any]:
    done = cache.setdefault(group.name, {})
    for k in range(max(asked.counts)):
        if f"model {k}" not in done:
            done[f"model {k}"] = group.end(k)
            save()
    for count in asked.counts:
        for method in asked.methods:
            if f"{method} of {count}" not in done:
                done[f"{method} of {count}"] = group.merged(method, count)
                save()
    return done


def table(found: list[dict[str, Any]], asked: argparse.Namespace) -> None:
    line("date", *COLUMNS)
    print("|" + "---|" * (len(COLUMNS) + 1))
    for count in asked.counts:
        ends = [[done[f"model {k}"] for k in range(count)] for done in found]
        losses, rights = ([statistics.mean(end[j] for end in each) for each in ends] for j in (0, 1))
        blank = ("", "", "")
        line(
            date.today(),
            count,
            "their mean",
            interval(losses, ".4f", ".4f"),
            interval(rights, ".4f", ".4f"),
            *blank,
        )
        first = [done[f"{asked.methods[0]} of {count}"] for done in found]
        for method in asked.methods:
            values = [done[f"{method} of {count}"] for done in found]
            apart = [100 * (value[1] - base[1]) for value, base in zip(values, first, strict=True)]
            line(
                date.today(),
                count,
                method.replace(":", ", ", 1).replace("=", " "),
                interval([value[0] for value in values], ".4f", ".4f"),
                interval([value[1] for value in values], ".4f", ".4f"),
                interval([v[0] - loss for v, loss in zip(values, losses, strict=True)], "+.4f", ".4f"),
                "" if method == asked.methods[0] else interval(apart, "+.2f", ".2f"),
                f"{statistics.median(value[2] for value in values):.1f}",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--group", nargs="+", action="append", required=True, type=Path, metavar="FILE")
    parser.add_argument("--counts", nargs="+", type=int, default=[2, 3, 5])
    parser.add_argument("--methods", nargs="+", default=["wm", "merge-many", "universe", "ste-mm"])
    parser.add_argument("--cache", type=Path, help="a JSON file with what was measured before")
    asked = parser.parse_args()
    for method in asked.methods:
        parsed(method)  # a wrong option speaks before an hour of measuring
    if min(map(len, asked.group)) < max(asked.counts):
        parser.error(f"a group has fewer models than {max(asked.counts)}")
    cache = json.loads(asked.cache.read_text()) if asked.cache and asked.cache.exists() else {}

    def save() -> None:
        if asked.cache:
            asked.cache.write_text(json.dumps(cache, indent=1))

    print(environment(), flush=True)
    torch.manual_seed(0)
    found = [measure(Group(files, asked.data), asked, cache, save) for files in asked.group]
    table(found, asked)


if __name__ == "__main__":
    main()
