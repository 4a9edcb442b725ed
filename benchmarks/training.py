"""Milliseconds that `rebasin train` takes a step, beside the same steps in plain PyTorch.

    python benchmarks/training.py [--nets "resnet20 batch,resnet20 layer,vgg11 none"] [--steps 8] [--runs 3]

A step is a batch of 128 CIFAR-10 images, SGD with Nesterov's momentum and decay. `train`'s are those of its
defaults, random crops and flips included: three epochs less one. "plain" has its batches ready, without crops
and flips, and is measured in each precision and memory format; the last column is the fair one, beside
the fastest of these. Runs alternate; medians of this process's processor seconds, one thread.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from _rows import begin, heading, median, parser, row
from torch.nn import functional as F

from rebasin_cli import nets
from rebasin_cli.datasets import open_data
from rebasin_cli.learning import training
from rebasin_cli.runtime.seeds import seeded

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


def main() -> None:
    found = parser(__doc__, rows=False)
    found.add_argument("--nets", default="resnet20 batch,resnet20 layer,vgg11 none")
    found.add_argument("--steps", type=int, default=8)
    asked = begin(found)
    torch.set_num_threads(1)
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
