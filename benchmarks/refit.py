"""What a refit of the middle between trained endpoints is worth, by images and ridge, beside controls.

    python benchmarks/refit.py --data mnist --pairs a.safetensors:b.safetensors … [--cache FILE] [--method wm]
        [--images 100 300 1000 3000 10000] [--ridges 1e-4 1e-3 1e-2 1e-1 1]

Every row is measured at λ = ½ on the whole test split: the endpoints and their ensemble; the merge of aligned
models and of models as they are, without a repair (with BatchNorm: reset on 2,560 samples) and with a refit.
Ridges are compared on 1,000 images. "A fine-tuned" is the control that costs as much: the first endpoint
trained on the same 1,000 images *with their labels*, which a refit does not look at, for as many seconds as
the refit of the aligned merge took (Adam, 1e-4, batches of 50; no augmentation). Images are training samples
drawn with seed 1, matching looks at others. Seconds are of one thread, tracing the network included. With
several pairs these are means, with 95 % intervals by Student's t. What is in --cache is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line
from repair import Pair, Score, interval, parsed, row_of
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.networks.forward import call

IMAGES, RIDGES, USUAL, BATCH = (100, 300, 1_000, 3_000, 10_000), (1e-4, 1e-3, 1e-2, 1e-1, 1.0), 1_000, 250
RATE, STEP = 1e-4, 50  # of the training of the control
Row = tuple[float, ...]  # test loss, test accuracy, seconds where they are of interest


def refitted(pair: Pair, permutations: Any, images: int, ridge: float) -> Row:
    began = time.perf_counter()
    merged = rebasin_cli.merge(
        pair.models,
        pair.fitted,
        method="none",
        permutations=None if permutations is None else [permutations],
        repair_with="refit",
        ridge=ridge,
        network=pair.network,
        train=pair.train.subset(images, 1).with_batch_size(BATCH),
        device=pair.device,
    )
    return *measured(pair, merged.tensors), time.perf_counter() - began


def fine_tuned(pair: Pair, images: int, seconds: float) -> Row:
    """The first endpoint trained on with labels; batch norms keep their statistics up as in any training."""
    network = networks.load(pair.network, pair.models[0]).to(pair.device)
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    network.train()
    data, loss = pair.train.subset(images, 1).with_batch_size(STEP), pair.loss or F.cross_entropy
    optimizer, order = torch.optim.Adam(network.parameters(), lr=RATE), torch.Generator().manual_seed(0)
    began = time.process_time()
    while time.process_time() - began < seconds:
        for inputs, targets in data.shuffled(order):
            optimizer.zero_grad(set_to_none=True)
            loss(call(network, inputs.to(pair.device)), targets.to(pair.device)).backward()
            optimizer.step()
            if time.process_time() - began >= seconds:
                break
    found = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    return *measured(pair, found), seconds


def measured(pair: Pair, tensors: Any) -> Score:
    return pair.score(*pair.logits(tensors, pair.test))


def measure(pair: Pair, asked: argparse.Namespace, cache: dict[str, Any], save: Callable[[], None]) -> dict:
    """Row → test loss, accuracy and seconds of one pair."""
    done = cache.setdefault(f"{pair.name} {asked.method}", {})

    def take(row: str, make: Callable[[], Row]) -> None:
        if row not in done:
            done[row] = make()
            save()
            print(f"{pair.name}: {row}", *done[row], flush=True)

    if "endpoints, mean" not in done:
        done |= pair.ends()
        save()
    permutations = pair.permutations(asked.method)
    usual = "reset" if networks.has_running_statistics(pair.network) else "none"
    bases = {asked.method: permutations, "naive": None}
    for base, moved in bases.items():
        take(row_of(base, usual), lambda moved=moved: measured(pair, pair.merged(moved, usual)))
    for base, moved in bases.items():
        for images in asked.images:
            row = f"{base} + refit, {images:,} images"
            take(row, lambda moved=moved, images=images: refitted(pair, moved, images, 0.01))
        for ridge in asked.ridges:
            if ridge != 0.01:
                row = f"{base} + refit, {USUAL:,} images, ρ {ridge:g}"
                take(row, lambda moved=moved, ridge=ridge: refitted(pair, moved, USUAL, ridge))
    seconds = done[f"{asked.method} + refit, {USUAL:,} images"][2]
    take(f"A fine-tuned on {USUAL:,} images with labels", lambda: fine_tuned(pair, USUAL, seconds))
    return done


def table(found: list[dict[str, Row]]) -> None:
    line("date", "row", "test loss", "test accuracy", "s")
    print("|" + "---|" * 5)
    for row in found[0]:
        if all(row in done for done in found):
            columns = list(zip(*(done[row] for done in found), strict=True))
            shown = [interval(columns[0], ".4f", ".4f"), interval(columns[1], ".4f", ".4f")]
            seconds = f"{sum(columns[2]) / len(found):.1f}" if len(columns) > 2 else ""
            line(date.today(), row, *shown, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--pairs", nargs="+", required=True, metavar="A:B")
    parser.add_argument("--method", default="wm")
    parser.add_argument("--images", nargs="+", type=int, default=list(IMAGES))
    parser.add_argument("--ridges", nargs="*", type=float, default=list(RIDGES))
    parser.add_argument("--cache", type=Path, help="a JSON file with what was measured before")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    parsed(asked.method)  # a wrong option speaks before an hour of measuring
    asked.images = sorted({*asked.images, USUAL})
    cache = json.loads(asked.cache.read_text()) if asked.cache and asked.cache.exists() else {}

    def save() -> None:
        if asked.cache:
            asked.cache.write_text(json.dumps(cache, indent=1))

    torch.set_num_threads(1)
    print(environment(), flush=True)
    table([measure(Pair(files, asked.data, asked.device), asked, cache, save) for files in asked.pairs])


if __name__ == "__main__":
    main()
