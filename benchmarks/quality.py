"""What merges are worth: every method with every repair, auto within budgets, controls; on test data.

    python benchmarks/quality.py --data mnist --state FILE.json --groups a.safetensors:b.safetensors …
        [--methods wm am ste:epochs=8 wm@25s …]   "@25s": with swaps on the true loss in the end
        [--controls naive "random permutation"]
        [--repairs none repair refit …]  [--budgets 1T 60s …]
        [--images 100 300 3000 10000]  [--ridges 1e-4 1e-3 0.1]      of --by after the --of method
        [--made regression:1:2 …]        beside --groups: networks of _quality_made.py, made from these seeds
        [--table]                        of what was measured so far, in all files of --state; nothing more

A group is two models or more, merged with equal weights. Every row is measured on the whole test split; what
is in --state is not measured again, so a run that was killed goes on. Searches look at 10,000 training
samples (methods that learn, at all), repairs at 2,560, refits at 1,000, distillations at 10,000. "wm +
auto" is the repair that a merge by wm chooses. Tables hold means over groups, 95 % intervals by Student's t,
the share of the endpoints' accuracy, how much of the way from their mean to the ensemble's, and processor
seconds of one thread. "A + distill, towards all" and "A fine-tuned …" are what one end gains for the same:
samples without labels, or labels and as many seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from _quality_made import TASKS, splits, trained
from _rows import environment, line
from refit import fine_tuned
from repair import BATCH, RESET, Pair, interval, parsed

import rebasin_cli
from rebasin_cli import matchers, networks
from rebasin_cli.matchers.portfolio import align as searching
from rebasin_cli.repair.distillation import distill
from rebasin_cli.repair.options import DISTILL_SAMPLES
from rebasin_cli.repair.repair_steps import open_to_choice
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.symmetry.permutation import permuted, random

MATCH, IMAGES = 10_000, 1_000
PAIR, MANY = ("wm", "am", "dual", "ste"), ("wm", "merge-many", "universe", "dual", "ste-mm")
FITS = ("refit", "distill")
NORMED, PLAIN = ("none", "reset", *FITS), ("none", "repair", "rescale", "reshift", "bias", *FITS)
CONTROLS = ("naive", "random permutation")
Row = dict[str, Any]


class Group(Pair):
    """Models of one architecture, their network and data; what becomes of their mean."""

    @cached_property
    def held(self) -> Any:
        """Training samples that no search and no repair sees."""
        return self.train.subset(self.apart, 0, skip=self.apart)

    @property
    def apart(self) -> int:
        """Samples that repairs measure, and as many that are held out."""
        return min(RESET, self.train.samples // 8)

    @cached_property
    def searched(self) -> Any:
        return self.train.subset(self.train.samples - 2 * self.apart, 0, skip=2 * self.apart)

    def aligned(self, method: str) -> Any:
        if method == CONTROLS[0]:
            return self.models
        if method == CONTROLS[1]:
            orders = [random(self.fitted.words, generator(k, "control")) for k in range(1, len(self.models))]
            moved = [permuted(m, self.fitted, p) for m, p in zip(self.models[1:], orders, strict=True)]
            return (self.models[0], *moved)
        method, _, polish = method.partition("@")
        name, options = parsed(method)
        samples = getattr(matchers.registry.get(name), "SAMPLES", MATCH)
        data = self.searched if samples is None else self.searched.subset(samples, 0)
        given = {"network": self.network, "data": data, "polish": polish or None, "prove": False}
        given["loss"] = self.loss
        return searching.align(self.models, self.fitted, method=name, options=options, **given).models

    def batches(self, how: str, images: int) -> Any:
        count, size = (images, 250) if how == "refit" else (self.apart, BATCH)
        if how == "distill":  # others than what choices look at
            some = self.searched.subset(DISTILL_SAMPLES if images == IMAGES else images, 0)
            return some.with_batch_size(250).mixed(0)
        return self.train.subset(count, 0).with_batch_size(size).mixed(0)

    def mended(self, models: Any, how: str, **more: Any) -> Any:
        return self.merged_by(models, how, **more).tensors

    def merged_by(
        self, models: Any, how: str, images: int = IMAGES, ridge: float | None = None, repaired: Any = None
    ) -> Any:
        return rebasin_cli.merge(
            models,
            self.fitted,
            method="none",
            repair_with=how,
            repaired=repaired,
            ridge=ridge,
            network=self.network,
            train=self.batches(how, images),
            held=self.held,
            loss=self.loss,
        )

    def row(self, tensors: Any, **more: Any) -> Row:
        """Test figures."""
        loss, right = self.score(*self.logits(dict(tensors), self.test))
        return {"loss": loss, "accuracy": right, **more}

    def ends(self) -> dict[str, Row]:
        """The endpoints' mean figures, and those of the mean of their logits."""
        every = [self.logits(model, self.test) for model in self.models]
        losses, right = zip(*(self.score(*it) for it in every), strict=True)
        both = self.score(sum(outputs for outputs, _ in every) / len(every), every[0][1])
        return {
            "endpoints, mean": {"loss": statistics.mean(losses), "accuracy": statistics.mean(right)},
            f"logit ensemble ({len(every)} times the cost)": {"loss": both[0], "accuracy": both[1]},
        }


class Made(Group):
    """Networks that this script trains, of a task that `rebasin train` has not."""

    def __init__(self, task: str, seeds: Sequence[int]):
        every = [trained(task, seed) for seed in seeds]
        self.network, self.device = every[0][0], "cpu"
        self.models = [model for _, model in every]
        self.train, self.test = splits(task)
        self.fitted = rebasin_cli.infer_spec(self.network, self.train.source.inputs[:2]).fitted
        self.score = TASKS[task].score
        self.loss = None if task == "segmentation" else TASKS[task].loss
        self.name = f"{task} {' '.join(map(str, seeds))}"


def measure(group: Group, asked: argparse.Namespace, done: dict[str, Row], save: Callable[[], None]) -> None:
    def take(row: str, make: Callable[[], Row]) -> None:
        if row not in done:
            try:
                done[row] = make()
            except rebasin_cli.RebasinError as error:  # a repair that this network does not admit
                done[row] = {"why": str(error).splitlines()[0]}
            save()
            print(group.name, row, done[row], flush=True)

    if "endpoints, mean" not in done:
        done |= group.ends()
        save()
    two, normed = len(group.models) == 2, networks.has_running_statistics(group.network)
    methods = asked.methods or (PAIR if two else MANY)
    repairs = asked.repairs or (NORMED if normed else PLAIN)
    for method in (*asked.controls, *methods):
        control = method in CONTROLS
        wanted = [NORMED[normed], *FITS] if control else [*repairs, *["auto"] * (method == "wm")]
        wanted = [how for how in wanted if not control or how not in FITS or how in repairs]
        found: list[Any] = []
        for how in wanted:
            take(
                f"{method} + {how}",
                lambda how=how, method=method, found=found: one(group, method, how, found),
            )
    found = []
    for images in asked.images:
        row = f"{asked.of} + {asked.by}, {images:,} images"
        take(row, lambda n=images: one(group, asked.of, asked.by, found, images=n))
    for ridge in asked.ridges:
        row = f"{asked.of} + refit, ρ {ridge:g}"
        take(row, lambda r=ridge: one(group, asked.of, "refit", found, ridge=r))
    for how, images in (("refit", IMAGES), ("distill", DISTILL_SAMPLES)):
        seconds = done.get(f"wm + {how}", {}).get("repair")
        if seconds:
            take(
                f"A fine-tuned on {images:,} images with labels",
                lambda n=images, s=seconds: dict(
                    zip(("loss", "accuracy", "repair"), fine_tuned(group, n, s), strict=True)
                ),
            )
    if done.get("wm + distill", {}).get("repair"):
        take("A + distill, towards all", lambda: towards(group))
    for budget in asked.budgets:
        take(f"auto {budget}", lambda budget=budget: auto(group, budget))


def one(group: Group, method: str, how: str, found: list[Any], **more: Any) -> Row:
    """One row; the search is run for the first repair of a method, and kept for the others."""
    if not found:
        began = time.process_time()
        models = group.aligned(method)
        found += [models, time.process_time() - began]
    began = time.process_time()
    tensors = group.mended(found[0], how, **more)
    return group.row(tensors, search=found[1], repair=time.process_time() - began)


def towards(group: Group) -> Row:
    """One end trained towards the mean of all outputs, as a merge is: what is left of it without a merge."""
    network = networks.load(group.network, group.models[0])
    began = time.process_time()
    distill(network, group.models, group.batches("distill", IMAGES), logits=group.loss is None)
    seconds = time.process_time() - began
    tensors = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    return group.row(tensors, repair=seconds)


def auto(group: Group, budget: str) -> Row:
    began = time.process_time()
    found = searching.align(
        group.models,
        group.fitted,
        method="auto",
        options={"budget": budget},
        network=group.network,
        data=group.searched,
        repairs=open_to_choice("auto", statistics=networks.has_running_statistics(group.network)),
        loss=group.loss,
        prove=False,
    )
    searched, began = time.process_time() - began, time.process_time()
    taken = found.result.chosen
    merged = group.merged_by(found.models, taken.repair or "auto", repaired=taken.repaired)
    repaired = time.process_time() - began
    chosen = f"{taken.method} + {merged.repair.method if merged.repair else 'none'}"
    return group.row(merged.tensors, search=searched, repair=repaired, chosen=chosen)


# ------------------------------------------------------------------------------------------------ tables


def table(found: list[dict[str, Row]]) -> None:
    """Means over the groups that have a row, all of which the others have, too."""
    columns = ("test loss", "test accuracy", "of the endpoints'", "% of the way to the ensemble (loss)")
    line("date", "row", "groups", *columns, "search, s", "repair, s")
    print("|" + "---|" * 9)
    for row in dict.fromkeys(row for done in found for row in done):
        rows = [(done[row], done["endpoints, mean"]) for done in found if "loss" in done.get(row, {})]
        if not rows:
            continue
        own = [it for it, _ in rows]
        share = [100 * it["accuracy"] / end["accuracy"] for it, end in rows]
        cells = [interval([it[name] for it in own], ".4f", ".4f") for name in ("loss", "accuracy")]
        spent = [
            f"{statistics.mean(it[n] for it in own):.1f}" if n in own[0] else "" for n in ("search", "repair")
        ]
        ends, whole = (
            statistics.mean(
                next(it for n, it in done.items() if n.startswith(name))["loss"] for done in found
            )
            for name in ("endpoints", "logit ensemble")
        )
        far = f"{100 * (ends - statistics.mean(it['loss'] for it in own)) / (ends - whole):.0f}"
        chosen = "; ".join(it["chosen"] for it in own if "chosen" in it)
        name = f"{row}: {chosen}" if chosen else row
        line(
            date.today(),
            name.replace("|", " "),
            len(own),
            *cells,
            interval(share, ".1f", ".1f"),
            far,
            *spent,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--groups", nargs="*", default=[], metavar="A:B")
    parser.add_argument("--made", nargs="*", default=[], metavar="TASK:SEED:SEED")
    parser.add_argument("--state", type=Path, required=True, nargs="+")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--controls", nargs="*", default=CONTROLS)
    parser.add_argument("--repairs", nargs="*")
    parser.add_argument("--budgets", nargs="*", default=[])
    parser.add_argument("--images", nargs="*", type=int, default=[])
    parser.add_argument("--ridges", nargs="*", type=float, default=[])
    parser.add_argument("--of", default="wm")
    parser.add_argument("--by", default="refit", choices=FITS)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    first = asked.state[0]
    state = {
        name: it for file in asked.state if file.exists() for name, it in json.loads(file.read_text()).items()
    }

    def save() -> None:
        beside = first.with_suffix(".new")  # a kill leaves the old one or this one
        beside.write_text(json.dumps(state, indent=1))
        beside.replace(first)

    names = []
    print(environment(), "\n", flush=True)
    made = [name.split(":") for name in asked.made]
    groups = [lambda files=files: Group(files, asked.data, "cpu") for files in asked.groups]
    groups += [lambda task=task, seeds=seeds: Made(task, [*map(int, seeds)]) for task, *seeds in made]
    for opened in groups:
        group = opened()
        names.append(group.name)
        if not asked.table:
            measure(group, asked, state.setdefault(group.name, {}), save)
    found = [state[name] for name in names or state if name in state]
    table(found)


if __name__ == "__main__":
    main()
