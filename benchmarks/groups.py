"""What signs, scales and rotations add to permutations: midpoints of trained endpoints, beside controls.

    python benchmarks/groups.py --data mnist --pairs a.safetensors:b.safetensors … [--cache FILE]
        [--images 2000] [--rows NAME …] [--ste-batch 128] [--epochs 1]

Every row is measured at λ = ½ on the whole test split, in the same architecture: the endpoints and their
logit ensemble; both models as they are, in canonical form, after a random element of all groups; after `wm`
and `am` with permutations, and `wm` (no data), `am` and `am --then wm` with groups; --epochs of `ste` with
each, on all training samples and their labels, by batches of --ste-batch. Each also with a temperature fitted
on training samples, and with `--repair refit`, on --images training samples without their labels. Rows with
"(dreams)" see no data at all: their samples, those of their refits too, are images that both models imagine
(`rebasin dream`), 1,000 of them. Seconds are the processor's, of the search, canonical forms and dreams
included, on one thread.
With several pairs these are means, with 95 % intervals by Student's t. "function error" is how far the
aligned model's outputs are from those of the model as it was, relative to the largest, in float32 as
written. What is in --cache is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line
from repair import Pair, interval, score

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.datasets import UNIT, Data, Samples, form
from rebasin_cli.inference.inferring import infer
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.networks import dream_images
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry.folds import NONE
from rebasin_cli.symmetry.form import canonical

SEARCHES = {  # row: method, options, whether with groups
    "wm, permutations": ("wm", {}, False),
    "am, permutations": ("am", {}, False),
    "wm, groups (no data)": ("wm", {}, True),
    "am, groups": ("am", {}, True),
    "am then wm, groups": ("am", {"then": "wm"}, True),
    "dual, permutations": ("dual", {}, False),
    "dual, groups": ("dual", {}, True),
    "am, permutations (dreams)": ("am", {}, False),
    "dual, permutations (dreams)": ("dual", {}, False),
    "am, groups (dreams)": ("am", {}, True),
    "dual, groups (dreams)": ("dual", {}, True),
    **{
        f"wm, {how} ({seen})": ("wm", {}, how == "groups")
        for seen in ("dreams", "noise", "white noise")
        for how in ("permutations", "groups")
    },
    "ste, permutations": ("ste", {}, False),
    "ste, groups": ("ste", {}, True),
}
IMAGINED = {
    " (dreams)": dream_images.STEPS,
    " (noise)": 0,
    " (white noise)": None,
}  # rows that see no data: steps
LOOK = ("am", "dual")  # methods that see --images without labels
LEARN = ("ste",)  # methods that see all training samples and their labels


ROWS = ("naive", *(f"naive{seen}" for seen in IMAGINED), "canonical forms", "random group element", *SEARCHES)


class Grouped(Pair):
    """A pair with its network's symmetries."""

    def __init__(self, files: str, data: str, images: int, batch: int = 128, epochs: int = 1):
        super().__init__(files, data, "cpu")
        self.batch, self.epochs = batch, epochs
        self.known: dict[int | None, tuple[Data, float]] = {}  # images without data, by steps
        self.samples = self.train.subset(images, 0)
        example = next(iter(self.samples))[0][:2]
        self.found = infer(self.network, example, prove=False, groups=True)
        self.forms = [canonical(model, self.found.fitted, self.found.folds) for model in self.models]

    def imagined(self, steps: int | None) -> tuple[Data, float]:
        """What both models imagine in so many steps, None for white noise, and the seconds that it took."""
        began = time.process_time()
        own = [networks.load(networks.duplicate(self.network), dict(model)) for model in self.models]
        shape, pixels = form(self.train.name, str(self.train.normalization))
        found = dream_images.dream(own, shape, pixels=pixels, steps=steps or 0)
        if steps is None:
            mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (pixels.mean, pixels.std))
            drawn = torch.randn(found.inputs.shape, generator=generator(0, "white noise"))
            found = Samples(mean + std * drawn, found.targets)
        data = Data("dreams", "train", found, UNIT, self.train.classes)
        return data, time.process_time() - began

    def looked_at(self, row: str) -> tuple[Data, float]:
        """Unlabelled samples for a row, and the seconds that they cost."""
        seen = next((steps for end, steps in IMAGINED.items() if row.endswith(end)), -1)
        if seen == -1:
            return self.samples, 0.0
        if seen not in self.known:
            self.known[seen] = self.imagined(seen)
        return self.known[seen]

    def ready(self, row: str) -> tuple[list[Any], float, float]:
        """Both models as a row has them, seconds, and the second one's function error."""
        samples, imagining = self.looked_at(row)
        began = time.process_time() - imagining
        if row.startswith("naive"):
            return self.models, imagining, 0.0
        forms = [each.tensors for each in self.forms]
        if row == "canonical forms":
            return forms, 0.0, self.error(forms[1])
        if row == "random group element":
            drawn = acts.random(self.found.fitted, generator(0, "control"))
            return [forms[0], acts.acted(forms[1], self.found.fitted, drawn)], 0.0, 0.0
        method, options, groups = SEARCHES[row]
        learns = method in LEARN
        options = options | ({"epochs": self.epochs} if learns else {})
        fitted = self.found.fitted
        found = align(
            self.models,
            fitted if groups else fitted.ordered,
            method=method,
            options=options | ({"limit": samples.samples} if method in LOOK else {}),
            network=self.network,
            data=self.train.with_batch_size(self.batch) if learns else samples,
            prove=False,
            folds=self.found.folds if groups else NONE,
        )
        return list(found.models), time.process_time() - began, self.error(found.models[1])

    def error(self, tensors: Any) -> float:
        before, after = (self.logits(dict(t), self.test.subset(500, 0))[0] for t in (self.models[1], tensors))
        return float((before - after).abs().max() / before.abs().max())

    def refit(self, models: list[Any], samples: Data) -> Any:
        return rebasin_cli.merge(
            [dict(model) for model in models],
            self.found.fitted,
            method="none",
            repair_with="refit",
            network=self.network,
            train=samples,
        ).tensors


def measure(pair: Grouped, rows: list[str], done: dict[str, Any], save: Any) -> None:
    if "endpoints, mean" not in done:
        done |= {name: [*both, None, None] for name, both in pair.ends().items()}
        save()
    for row in rows:
        if row in done and f"{row} + refit" in done:
            continue
        models, seconds, error = pair.ready(row)
        middle = {
            name: (own + models[1][name]) / 2 if own.is_floating_point() else own
            for name, own in models[0].items()
        }
        plain, tempered = pair.tempered(middle)
        done[row] = [*plain, seconds, error]
        done[f"{row} + temperature"] = [*tempered, None, None]
        began = time.process_time()
        fitted = pair.refit(models, pair.looked_at(row)[0])
        seconds += time.process_time() - began
        done[f"{row} + refit"] = [*score(*pair.logits(fitted, pair.test)), seconds, None]
        save()
        print(f"  {pair.name}  {row}  {plain[1]:.4f}  {done[f'{row} + refit'][1]:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--pairs", nargs="+", required=True)
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--ste-batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cache = json.loads(given.cache.read_text()) if given.cache and given.cache.exists() else {}

    def save() -> None:
        if given.cache:
            given.cache.write_text(json.dumps(cache))

    rows: list[dict[str, Any]] = []
    for files in given.pairs:
        pair = Grouped(files, given.data, given.images, given.ste_batch, given.epochs)
        measure(pair, given.rows, cache.setdefault(f"{pair.name} {given.images}", {}), save)
        rows.append(cache[f"{pair.name} {given.images}"])
    print(environment())
    line("date", "row", "test loss", "test accuracy", "seconds", "function error")
    print("|" + "---|" * 6)
    for name in rows[0]:
        columns = list(zip(*(row[name] for row in rows), strict=True))
        told = [interval(column, ".4f", ".4f") for column in columns[:2]]
        seconds = "" if not columns[2][0] else f"{sum(columns[2]) / len(columns[2]):.1f}"
        error = "" if not columns[3][0] else f"{max(columns[3]):.0e}"
        line(date.today(), name, *told, seconds, error)


if __name__ == "__main__":
    main()
