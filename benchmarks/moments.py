"""What it costs to add up the activations of two models: by the compiled module, and with PyTorch.

    python benchmarks/moments.py [--runs 15]

A batch of values of each width after a ReLU, sample by sample, on one thread: medians of milliseconds, the
ways in turns; other memory is touched in between, so that no value lies in a cache. "plain" are sums, sums of
squares and one product, in float32 and without anything that keeps digits. "off by" are the largest
differences of a correlation from plain float64, where units of both models fire together.
"""

from __future__ import annotations

import argparse
import time

import torch
from _rows import environment, heading, median, row

from rebasin_cli.matchers.activations import moments
from rebasin_cli.matchers.activations.moments import Moments

SHAPES = ((16, 256_000), (20, 256_000), (32, 64_000), (64, 16_000), (128, 16_000), (512, 4_000), (512, 250))


def added(a: torch.Tensor, b: torch.Tensor, module: object) -> Moments:
    found, before = Moments.none(len(a), a.device), moments._moments
    moments._moments = module
    try:
        found.add(a, b)
    finally:
        moments._moments = before
    return found


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    for values in (a, b):
        values.sum(1)
        torch.linalg.vecdot(values, values)
    return a @ b.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(environment(), flush=True)
    compiled = moments._moments
    if compiled is None:
        raise SystemExit("the compiled module is not here: it needs a C compiler, and x86-64 with AVX2")
    heading(
        "units",
        "samples",
        "compiled, ms",
        "PyTorch, ms",
        "ratio",
        "plain, ms",
        "ratio",
        "off by",
        "PyTorch off by",
    )
    elsewhere = torch.zeros(1 << 25)
    for units, samples in SHAPES:
        values = torch.randn(samples, units)
        a, b = values.relu().T, (values + 0.1 * torch.randn_like(values)).relu().T
        ways = {
            "compiled": lambda a=a, b=b: added(a, b, compiled),
            "PyTorch": lambda a=a, b=b: added(a, b, None),
            "plain": lambda a=a, b=b: plain(a, b),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(asked.runs):
            for name, way in ways.items():
                elsewhere.add_(1)
                began = time.perf_counter()
                way()
                taken[name].append(time.perf_counter() - began)
        mine, theirs, least = (median(taken[name]) * 1e3 for name in ways)
        corr = torch.corrcoef(torch.cat([a, b]).double())[:units, units:]
        off = [(added(a, b, module).correlation() - corr).abs().max().item() for module in (compiled, None)]
        figures = (
            f"{mine:.2f}",
            f"{theirs:.2f}",
            f"{theirs / mine:.1f}",
            f"{least:.2f}",
            f"{least / mine:.1f}",
        )
        row(units, samples, *figures, *(f"{each:.1e}" for each in off))


if __name__ == "__main__":
    main()
