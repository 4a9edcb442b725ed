"""Seconds and peak memory of one pass of activation matching, against the forward passes it is made of.

    python benchmarks/activations.py [--net resnet20] [--width 4] [--samples 10000] [--runs 3]

Each is a process of its own on the same images: nothing (which imports and reads them), both networks'
forward passes alone, and `am`'s one pass over both. The passes alone are in inference mode, norms folded into
convolutions and images channels last, or with `--contiguous` as they lie. Seconds are medians of what comes
after the imports, tracing included: the process's own processor seconds on one thread, so that others who use
the machine do not count. am has batches of 250, as commands give it, the passes alone batches of 500. Then
the sums of that pass are compared with a plain second program: two passes over all activations at once, in
float64, on the first --compared samples. Networks are as they are initialised. Linux and macOS only.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import subprocess
import sys
import time
from datetime import date
from functools import partial
from typing import Any

import torch
from _rows import described, environment, heading, median, random_net, row
from torch.fx.experimental.optimization import fuse

from rebasin_cli import nets, networks
from rebasin_cli.datasets import open_data
from rebasin_cli.matchers import Problem, am
from rebasin_cli.matchers.activations import MATCH_BATCH
from rebasin_cli.matchers.activations.batches import watch
from rebasin_cli.matchers.activations.moments import Moments
from rebasin_cli.matchers.activations.similarities import similarities
from rebasin_cli.matchers.activations.sites import find
from rebasin_cli.runtime.memory import keep_freed

BAR = 1.2
SHAPE = (3, 32, 32)


def prepared(asked: argparse.Namespace) -> tuple[torch.nn.Module, list[dict[str, torch.Tensor]], Any]:
    models = [random_net(asked.net, SHAPE, asked.width, seed) for seed in (0, 1)]
    network = nets.build(asked.net, input_shape=SHAPE, classes=10, width=asked.width)
    size = MATCH_BATCH if asked.task == "am" else 500
    data = open_data("cifar10", "train", limit=asked.samples, batch_size=size)
    return network, models, list(data)


def forwards(network: torch.nn.Module, models: list, data: Any, *, contiguous: bool) -> None:
    layout = torch.contiguous_format if contiguous else torch.channels_last
    for model in models:
        networks.load(network, model)
        folded = fuse(copy.deepcopy(network).eval()).to(memory_format=layout)
        with torch.inference_mode():
            for inputs, _ in data:
                folded(inputs.contiguous(memory_format=layout))


def observed(network: torch.nn.Module, models: list, data: Any) -> None:
    problem = Problem(described(models[0]), tuple(models), network=network, data=data)
    similarities(problem, am.Options())


TASKS = {"nothing": lambda *_: None, "forward passes": forwards, "am": observed}


def child(asked: argparse.Namespace) -> None:
    """One task, and what it took: a line of JSON."""
    torch.set_num_threads(1)
    keep_freed()  # as the command does; the passes alone gain by it, too
    ready = prepared(asked)
    tasks = TASKS | {"forward passes": partial(forwards, contiguous=asked.contiguous)}
    began = time.process_time()
    tasks[asked.task](*ready)
    seconds = time.process_time() - began
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps({"seconds": seconds, "bytes": peak}))


def taken(asked: argparse.Namespace, task: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--task", task]
    for name in ("net", "width", "samples"):
        command += [f"--{name}", str(getattr(asked, name))]
    command += ["--contiguous"] * asked.contiguous
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def worst(asked: argparse.Namespace) -> dict[str, float]:
    """The largest differences of the one pass from plain float64 in two passes, over all places.

    Of means relative to the largest standard deviation of the place, of standard deviations to themselves,
    of correlations as they are.
    """
    asked.samples = asked.compared
    network, models, data = prepared(asked)
    fitted = described(models[0])
    places: dict[Any, Moments] = {}
    kept: dict[Any, tuple[list, list]] = {}
    for inputs, _ in data:
        graph = find(network, fitted, (inputs,), {})
        looked = []
        for word, sites in graph.of.items():
            for k, site in enumerate(sites):
                key = (word, k)
                moments = places.setdefault(key, Moments.none(fitted.words[word], torch.device("cpu")))
                looked.append((site.post[0], _Recorder(moments, kept.setdefault(key, ([], [])))))
        watch(graph, tuple(models), ((inputs,), {}), looked, "cpu")
    found = {"means": 0.0, "standard deviations": 0.0, "correlations": 0.0}
    for key, moments in places.items():
        both = [torch.cat(parts, 1) for parts in kept.pop(key)]
        means = [x.mean(1) for x in both]
        centred = [x - mean[:, None] for x, mean in zip(both, means, strict=True)]
        stds = [x.square().mean(1).sqrt() for x in centred]
        corr = centred[0] @ centred[1].T / both[0].shape[1] / torch.outer(*stds)
        alive = torch.outer(*(std > 0 for std in stds))
        apart = (moments.correlation() - corr)[alive].abs().max().item()
        found["correlations"] = max(found["correlations"], apart)
        for total, square, mean, std in zip(moments.sums, moments.squares, means, stds, strict=True):
            mine = total / moments.samples
            mine_std = (square / moments.samples - mine.square()).clamp(min=0).sqrt()
            found["means"] = max(found["means"], ((mine - mean).abs().max() / std.max()).item())
            some = std > 0
            off = ((mine_std - std)[some].abs() / std[some]).max().item()
            found["standard deviations"] = max(found["standard deviations"], off)
    return found


class _Recorder:
    """Adds to sums, and keeps what was added."""

    def __init__(self, moments: Moments, kept: tuple[list, list]):
        self.moments, self.kept = moments, kept

    def add(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.moments.add(a, b)
        for side, value in zip(self.kept, (a, b), strict=True):
            side.append(value.double())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--net", default="resnet20")
    parser.add_argument("--width", type=float, default=4)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--contiguous", action="store_true", help="the passes alone on images as they lie")
    parser.add_argument("--compared", type=int, default=500, help="samples for the comparison; 0: none")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.task:
        child(asked)
        return
    print(environment(), flush=True)
    times: dict[str, list[dict[str, float]]] = {task: [] for task in TASKS}
    for _ in range(asked.runs):
        for task, runs in times.items():
            runs.append(taken(asked, task))
    seconds, memory = (
        {task: median(run[what] for run in runs) for task, runs in times.items()}
        for what in ("seconds", "bytes")
    )
    heading(
        "network", "samples", "forward passes, s", "am, s", f"ratio (≤ {BAR})", *(f"{t}, MB" for t in TASKS)
    )
    row(
        f"{asked.net} {asked.width:g}×", asked.samples,
        f"{seconds['forward passes']:.1f}", f"{seconds['am']:.1f}",
        f"{seconds['am'] / seconds['forward passes']:.2f}", *(f"{memory[task] / 1e6:.0f}" for task in TASKS),
    )  # fmt: skip
    if asked.compared:
        print(f"{date.today()}: largest difference from plain float64, {asked.compared} samples:")
        for what, value in worst(asked).items():
            print(f"{what}: {value:.1e}")


if __name__ == "__main__":
    main()
