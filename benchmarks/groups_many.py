"""What groups add where many models are merged: the mean of the first n of trained models, beside controls.

    python benchmarks/groups_many.py --data mnist --models a.safetensors b.safetensors … [--counts 3 4]
        [--images 2000] [--ste-batch 128] [--cache FILE] [--rows NAME …]

Each row is the mean with equal weights, measured on the whole test split, in the same architecture: of the
models as they are, after `merge-many` and `universe` (no data) and one epoch of `ste-mm`, each with
permutations and with groups, each also with `--repair refit` on --images training samples without labels;
and the endpoints and their logit ensemble. Seconds are the processor's, of the search, on one thread. What
is in --cache is not measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line
from groups import Grouped
from repair import score

from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.symmetry.folds import NONE

SEARCHES = {  # row: method, options, whether with groups
    "merge-many, permutations": ("merge-many", {}, False),
    "merge-many, groups (no data)": ("merge-many", {}, True),
    "universe, permutations": ("universe", {}, False),
    "universe, groups (no data)": ("universe", {}, True),
    "ste-mm, permutations": ("ste-mm", {"epochs": 1}, False),
    "ste-mm, groups": ("ste-mm", {"epochs": 1}, True),
}
ROWS = ("naive", *SEARCHES)


def searched(many: Grouped, row: str) -> tuple[list[Any], float]:
    """The models as a row has them, and seconds."""
    if row == "naive":
        return many.models, 0.0
    method, options, groups = SEARCHES[row]
    began = time.process_time()
    found = align(
        many.models,
        many.found.fitted if groups else many.found.fitted.ordered,
        method=method,
        options=options,
        network=many.network,
        data=many.train.with_batch_size(many.batch),
        prove=False,
        folds=many.found.folds if groups else NONE,
    )
    return list(found.models), time.process_time() - began


def measure(many: Grouped, rows: list[str], done: dict[str, Any], save: Any) -> None:
    if "endpoints, mean" not in done:
        each = [many.logits(model, many.test) for model in many.models]
        both = [score(*part) for part in each]
        done["endpoints, mean"] = [*map(statistics.mean, zip(*both, strict=True)), None]
        ensemble = sum(outputs for outputs, _ in each) / len(each)
        done["logit ensemble (n times the cost)"] = [*score(ensemble, each[0][1]), None]
        save()
    for row in rows:
        if f"{row} + refit" in done:
            continue
        models, seconds = searched(many, row)
        mean = {name: sum(model[name] for model in models) / len(models) for name in models[0]}
        done[row] = [*score(*many.logits(mean, many.test)), seconds]
        began = time.process_time()
        fitted = many.refit(models, many.samples)
        seconds += time.process_time() - began
        done[f"{row} + refit"] = [*score(*many.logits(fitted, many.test)), seconds]
        save()
        print(f"  {many.name}  {row}  {done[row][1]:.4f}  {done[f'{row} + refit'][1]:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--counts", nargs="+", type=int, default=[3, 4])
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--ste-batch", type=int, default=128)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cache = json.loads(given.cache.read_text()) if given.cache and given.cache.exists() else {}

    def save() -> None:
        if given.cache:
            given.cache.write_text(json.dumps(cache))

    for count in given.counts:
        many = Grouped(":".join(given.models[:count]), given.data, given.images, given.ste_batch)
        measure(many, given.rows, cache.setdefault(f"{many.name} {given.images}", {}), save)
    print(environment())
    line("date", "n", "row", "test loss", "test accuracy", "seconds")
    print("|" + "---|" * 6)
    for count in given.counts:
        name = " ".join(Path(path).stem for path in given.models[:count])
        for row, (loss, right, seconds) in cache[f"{given.data} {name} {given.images}"].items():
            told = f"{seconds:.1f}" if seconds else ""
            line(date.today(), count, row, f"{loss:.4f}", f"{right:.4f}", told)


if __name__ == "__main__":
    main()
