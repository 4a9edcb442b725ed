"""Adapters averaged: error, processor seconds and memory, beside what peft has for it.

    python benchmarks/adapters.py                          4096 × 4096, rank 16, four adapters
    python benchmarks/adapters.py --size 1024 --svd        beside peft's `svd`, which makes the matrix

Each adapter is of one linear layer. `independent` have nothing in common, `shared start` have the same A (as
adapters that were trained from one seed nearly have), `one task` is one product in other bases. Errors are of
what is added, relative, in the Frobenius norm, in float64; peft's are those of the adapters that it makes.
"""

from __future__ import annotations

import argparse
import datetime
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rebasin_cli.averages.low_rank import Factors, Rank, best, distance, joined

DAY = datetime.date.today().isoformat()


def drawn(kind: str, size: int, rank: int, count: int) -> list[Factors]:
    rng = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64) / shape[-1] ** 0.5

    first = matrix(size, rank), matrix(rank, size)
    if kind == "one task":
        bases = [torch.linalg.qr(matrix(rank, rank)).Q for _ in range(count)]
        return [(first[0] @ q.mT, q @ first[1]) for q in bases]
    shared = kind == "shared start"
    return [(matrix(size, rank), first[1] if shared else matrix(rank, size)) for _ in range(count)]


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives, its processor seconds, and by how much the largest memory grew, in MB."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = run()
    seconds = time.process_time() - start
    return found, seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def by_peft(parts: list[Factors], kind: str, rank: int | None) -> Callable[[], Factors]:
    """peft's own way; the adapters are loaded before."""
    from peft import LoraConfig, get_peft_model
    from torch import nn

    size, own = parts[0][0].shape
    net = nn.Sequential(nn.Linear(size, size, bias=False))
    config = LoraConfig(r=own, lora_alpha=own, target_modules=["0"])
    model = get_peft_model(net, config, adapter_name="0")
    for k in range(1, len(parts)):
        model.add_adapter(str(k), config)
    layer = model.base_model.model[0]
    for k, (up, down) in enumerate(parts):
        layer.lora_A[str(k)].weight.data = down.float()
        layer.lora_B[str(k)].weight.data = up.float()
    names, weights = [str(k) for k in range(len(parts))], [1 / len(parts)] * len(parts)
    more = {"svd_rank": rank} if kind == "svd" else {}

    def run() -> Factors:
        model.add_weighted_adapter(names, weights, "made", combination_type=kind, **more)
        scale = layer.scaling["made"]
        return layer.lora_B["made"].weight.detach().double() * scale, layer.lora_A[
            "made"
        ].weight.detach().double()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--svd", action="store_true", help="peft's svd, too, which makes the matrix")
    parser.add_argument("--results", type=Path, help="add the rows to this file")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    weights, lines = [1 / asked.count] * asked.count, []
    for kind in ("independent", "shared start", "one task"):
        parts = drawn(kind, asked.size, asked.rank, asked.count)
        whole = joined(parts, weights)
        size = distance(whole, (whole[0][:, :1] * 0, whole[1][:1]))
        ways: dict[str, Callable[[], Factors]] = {
            "rebasin, full": lambda p=parts: best(joined(p, weights), Rank()).factors,
            f"rebasin, rank {asked.rank}": lambda p=parts: (
                best(joined(p, weights), Rank(most=asked.rank)).factors
            ),
        }
        try:
            for name in ("linear", "cat", *(["svd"] if asked.svd and kind == "independent" else [])):
                ways[f"peft, {name}"] = by_peft(parts, name, asked.rank)
        except ImportError:
            print("peft is not installed: its rows are left out")
        for name, run in ways.items():
            found, seconds, memory = timed(run)
            error = distance(found, whole) / size
            lines.append(
                f"| {DAY} | {kind} | {asked.size} | {asked.rank} × {asked.count} | {name} "
                f"| {found[0].shape[1]} | {error:.2g} | {seconds:.2f} | {memory:.0f} |"
            )
            print(lines[-1], flush=True)
    if asked.results:
        with asked.results.open("a") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
