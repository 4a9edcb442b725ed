"""Milliseconds that `rebasin train` takes a step, beside the same steps in plain PyTorch.

    python benchmarks/training.py [--nets "resnet20 batch,resnet20 layer,vgg11 none"] [--steps 8] [--runs 3]

    python benchmarks/training.py --lab [--runs 1]     # needs REBASIN_DATA

With --lab: hours of the lab's experiments at the papers' scale, from measured parts: a step of all networks
of a size, a point of all paths, a matching, each measured with the parameters of `--scale full`, times how
often it comes there. Losses to be reached (`until`), sharpness, rounds of many models and searches that train
are not in it: hours are the least. Processor seconds of one thread.

A step is a batch of 128 CIFAR-10 images, SGD with Nesterov's momentum and decay. `train`'s are those of its
defaults, random crops and flips included: three epochs less one. "plain" has its batches ready, without crops
and flips, and is measured in each precision and memory format; the last column is the fair one, beside
the fastest of these. Runs alternate; medians of this process's processor seconds, one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from _rows import begin, heading, median, parser, row
from torch.nn import functional as F

from rebasin_cli import lab as lab_
from rebasin_cli import nets
from rebasin_cli.datasets import open_data
from rebasin_cli.lab import cnn_width
from rebasin_cli.lab.batched import matching, samples, stacks
from rebasin_cli.lab.batched import training as training_of
from rebasin_cli.lab.engine.parameters import declared
from rebasin_cli.learning import training
from rebasin_cli.runtime.seeds import generator, seeded

ROOT = Path(lab_.__path__[0])
EXPERIMENTS = ("halves", "many-models", "many-widths", "onset", "cnn-width", "width")

BATCH = 128
FORMS = {
    "float32": (torch.float32, torch.contiguous_format),
    "float32, channels last": (torch.float32, torch.channels_last),
    "bfloat16": (torch.bfloat16, torch.contiguous_format),
    "bfloat16, channels last": (torch.bfloat16, torch.channels_last),
}


def trained(net: str, norm: str, epochs: int, steps: int) -> float:
    """Seconds of a training, as `rebasin train` runs it, with tests on next to nothing."""
    train, test = (open_data("cifar10", split, limit=steps * BATCH) for split in ("train", "test"))
    few, began = test.subset(2, 0), time.process_time()
    training.train(net, (train, few), norm=norm, epochs=epochs, batch_size=BATCH)
    return time.process_time() - began


def plain(net: str, norm: str, epochs: int, steps: int, form: str) -> float:
    """Seconds of as many steps."""
    dtype, layout = FORMS[form]
    with seeded(0, "training"):
        network = nets.build(net, input_shape=(3, 32, 32), classes=10, norm=norm).to(memory_format=layout)
    data = open_data("cifar10", "train", limit=steps * BATCH, batch_size=BATCH)
    batches = [(x.contiguous(memory_format=layout), y) for x, y in data]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    network.train()
    began = time.process_time()
    for x, y in epochs * batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            out = network(x)
        F.cross_entropy(out.float(), y).backward()
        optimizer.step()
    return time.process_time() - began


class Part(NamedTuple):
    """What is measured once, and how often it comes."""

    name: str
    times: float
    run: Callable[[], object]


def parts(name: str) -> Iterator[Part]:
    """Of an experiment at its full scale."""
    p = SimpleNamespace(**declared(ROOT / f"{name.replace('-', '_')}.yaml").values("full"))
    images, often = name == "cnn-width", getattr(p, "trials", 1)
    if isinstance(data := p.data, list):  # others are as large
        data, often = data[0], often * len(data)
    train, _, classes = samples.opened(data, None, images=images)
    epochs = getattr(p, "epochs", 0)
    moments = len(epochs) if isinstance(epochs, list) else 1  # at which paths are measured
    last = max(epochs) if isinstance(epochs, list) else epochs
    models = getattr(p, "models", 0) or max(getattr(p, "counts", [0])) or 2 * p.pairs
    for width, depth in product(getattr(p, "widths", None) or [p.width], getattr(p, "depths", None) or [0]):
        if images:
            stack = stacks.of_shapes(models, cnn_width.shapes(train, width, classes), generator(0, "lab"))
        else:
            layers = samples.layers(train, width, depth or p.depth, classes)
            stack = stacks.fresh(models, layers, generator(0, "lab"))
        share = round(getattr(p, "share", 1) * len(train.targets))
        steps = training_of.steps_of(last, share, p.batch) if epochs else p.steps
        how = {"batch": p.batch, "rate": p.rate, "optimizer": "adam" if epochs else "sgd"}
        few = train.some(4 * p.batch, generator(0, "few"))
        what = f"{models} networks of width {width}" + f", depth {depth}" * bool(depth)
        yield Part(f"a step of {what}", often * steps, partial(_step, stack, few, how))
        if not hasattr(p, "points"):
            pairs = often * models * (models - 1) / 2
            two = stacks.part(stack, slice(0, 2))
            yield Part("two of them matched, untrained", pairs, partial(matching.to_first, two))
            continue
        one, other = stacks.halved(stack)
        seen = train.some(p.measured, generator(0, "seen"))
        paths = often * moments * p.points * (3 if name == "onset" else 4)  # kinds of path, splits
        yield Part("a point of all their paths", paths, partial(stacks.path, one, other, *seen, 1))
        first = partial(matching.aligned, *(stacks.part(half, slice(0, 1)) for half in (one, other)))
        yield Part("a pair matched, untrained", often * moments * p.pairs, first)


def _step(stack: stacks.Stack, few: samples.Samples, how: dict[str, Any]) -> None:
    training_of.trained(stack, *few, steps=1, generator=generator(0, "step"), **how)


def lab(runs: int) -> None:
    heading("experiment", "part", "times", "seconds each", "hours")
    for name in EXPERIMENTS:
        hours = 0.0
        for part in parts(name):
            part.run()  # once before, as a run has
            taken = []
            for _ in range(runs):
                began = time.process_time()
                part.run()
                taken.append(time.process_time() - began)
            hours += (its := median(taken) * part.times / 3600)
            row(name, part.name, f"{part.times:,.0f}", f"{median(taken):.3g}", f"{its:.2f}")
        row(name, "**all**", "", "", f"**{hours:.1f}**")


def main() -> None:
    found = parser(__doc__, rows=False)
    found.add_argument("--lab", action="store_true", help="hours of experiments at the papers' scale")
    found.add_argument("--nets", default="resnet20 batch,resnet20 layer,vgg11 none")
    found.add_argument("--steps", type=int, default=8)
    asked = begin(found)
    torch.set_num_threads(1)
    if asked.lab:
        lab(asked.runs)
        return
    columns = (f"plain {form}, ms (ratio)" for form in FORMS)
    heading("network", "steps", "train, ms", *columns, "fair ratio")
    for name in asked.nets.split(","):
        net, norm = name.split()
        tasks = {form: partial(plain, net, norm, steps=asked.steps, form=form) for form in FORMS}
        tasks["train"] = partial(trained, net, norm, steps=asked.steps)
        taken: dict[str, list[float]] = {task: [] for task in tasks}
        for _ in range(asked.runs):
            for task, run in tasks.items():
                taken[task].append(run(3) - run(1))
        each = {task: 1e3 * median(seconds) / (2 * asked.steps) for task, seconds in taken.items()}
        own = each.pop("train")
        row(
            *(name, asked.steps, f"{own:.0f}"),
            *(f"{plain_:.0f} ({own / plain_:.2f})" for plain_ in each.values()),
            f"{own / min(each.values()):.2f}",
        )


if __name__ == "__main__":
    main()
