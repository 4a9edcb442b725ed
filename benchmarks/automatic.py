"""Is --method auto ever worse than the default? Merges by wm and by auto within some budgets, test figures.

    python benchmarks/automatic.py --data mnist --groups a.safetensors:b.safetensors … [--budgets 10s 60s]
        [--tenth]      choices by a tenth of the test split, which no figure is measured on

Every merge is repaired as --repair auto chooses. Budgets are of wall time, one thread.
"""

from __future__ import annotations

import argparse
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line, timed

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.commands.job.held_out import HeldOut
from rebasin_cli.datasets import open_data
from rebasin_cli.matchers.search import align as searching
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.spec.resolving import resolve_spec

COLUMNS = ("models", "method", "chosen", "repair", "test loss", "accuracy", "seconds")


def merges(paths: list[Path], asked: argparse.Namespace) -> None:
    opened = [rebasin_cli.open_checkpoint(path) for path in paths]
    models = [dict(model) for model in opened]
    fitted = resolve_spec(None, models)
    network = networks.resolve(None, fitted.spec, fitted.shapes).float()
    normalize = opened[0].metadata.get("rebasin.normalization")
    train, test = (open_data(asked.data, split, normalize=normalize) for split in ("train", "test"))
    rest, tenth = HeldOut.parse("0.1").parted(test, 0)
    reset = train.subset(2_560, 0).with_batch_size(256).mixed(0)
    held = tenth if asked.tenth else train.subset(2_560, 0, skip=2_560)
    for method in ("wm", *(f"auto {budget}" for budget in asked.budgets)):
        name, _, budget = method.partition(" ")
        given: dict[str, Any] = {}
        if budget:
            given = {"network": network, "data": train, "options": {"budget": budget}, "prove": False}
            given |= {"held": tenth} if asked.tenth else {}
        seconds, found = timed(partial(searching.align, models, fitted, method=name, **given))
        merged = rebasin_cli.merge(
            found.models, fitted, method="none", network=network, train=reset, held=held, unseen=asked.tenth
        )
        networks.load(network, dict(merged.tensors))
        scores = evaluate(network, rest if asked.tenth else test)
        repaired = merged.repair.method if merged.repair else "none"
        figures = (f"{scores.loss:.4f}", f"{scores.accuracy:.4f}", f"{seconds:.1f}")
        names = " ".join(path.stem for path in paths)
        line(date.today(), names, method, found.result.chosen or "–", repaired, *figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--groups", nargs="+", required=True)
    parser.add_argument("--budgets", nargs="+", default=["10s", "60s"])
    parser.add_argument("--tenth", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(environment(), "\n")
    line("date", *COLUMNS)
    print("|" + "---|" * (len(COLUMNS) + 1))
    for group in asked.groups:
        merges([Path(path) for path in group.split(":")], asked)


if __name__ == "__main__":
    main()
