"""What a command is about to do, before it does it: sizes, memory, minutes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import matchers, measuring
from .checkpoint import Checkpoint
from .evaluation import call
from .matchers._similarity import KEEP
from .sampling import Splits
from .spec.spec import FittedSpec

OVERHEAD = 100 << 20  # slabs of products and torch's own scratch space, in bytes


def plan_search(
    models: Sequence[Checkpoint], fitted: FittedSpec, method: str, *, proof: bool, memory: int | None = None
) -> dict[str, Any]:
    """Tensors, permutations, assignment sizes and estimated peak memory in bytes, without running anything.

    The search holds the models, two similarity matrices in float32, what the method says it holds beyond
    (`BYTES_A_PARAMETER`, `BYTES_A_PARAMETER_AND_MODEL`), and the matrices that it keeps, up to `memory`
    bytes. The proof comes before it and holds the network in float32 and in float64, and its activations,
    which are not counted.
    """
    sizes = sorted(fitted.words.values(), reverse=True)
    stored = sum(math.prod(s) * model.dtypes[n].itemsize for model in models for n, s in model.shapes.items())
    numbers = sum(math.prod(shape) for shape in fitted.shapes.values())
    matcher = None if method in ("none", "given") else matchers.registry.get(method)
    search = stored + 8 * (sizes[0] if sizes else 0) ** 2 + OVERHEAD
    search += getattr(matcher, "BYTES_A_PARAMETER", 0) * numbers
    search += getattr(matcher, "BYTES_A_PARAMETER_AND_MODEL", 0) * numbers * len(models)
    if matcher is not None:
        search += min(KEEP if memory is None else memory, sum(4 * size**2 for size in sizes))
    proving = 12 * numbers if proof else 0
    return {
        "models": len(models),
        "tensors": len(fitted.shapes),
        "parameters": numbers,
        "spec": fitted.spec.name,
        "method": method,
        "permutations": len(fitted.words),
        "log10_symmetries": round(fitted.log10_symmetries(), 1),
        "assignment_sizes": {str(size): sizes.count(size) for size in dict.fromkeys(sizes)},
        "search_bytes": search,
        "proof_bytes": proving,
        "peak_bytes": max(search, stored + proving),
    }


def plan_report(
    network: nn.Module, splits: Splits, rows: Iterable[str], *, output: str | None, device: str
) -> dict[str, Any]:
    """Rows, points and estimated seconds of a barrier report; None where inputs are no plain tensors."""
    points = {row: measuring.REPAIRED_POINTS if " + " in row else measuring.POINTS for row in rows}
    seconds = estimate_seconds(network, splits, points, output=output, device=device)
    return {
        "rows": points,
        "points": sum(points.values()),
        "samples": {split: data.samples for split, data in splits.items()},
        "estimated_seconds": seconds,
    }


def in_words(plan: Mapping[str, Any]) -> str:
    seconds = plan["estimated_seconds"]
    minutes = "" if seconds is None else f", about {max(seconds, 6) / 60:.1f} minutes of measuring"
    return f"plan: {plan['points']} points in {len(plan['rows'])} rows{minutes}"


def estimate_seconds(
    network: nn.Module, splits: Splits, points: Mapping[str, int], *, output: str | None, device: str
) -> float | None:
    """Seconds that a report will take: one timed batch, times the batches of every point of every row."""
    some = next(iter(splits.values()))
    inputs = some.example(min(some.samples, some.batch_size or 100))
    if not isinstance(inputs, torch.Tensor):
        return None
    network.to(device).eval()
    with torch.inference_mode():
        call(network, inputs[:2].to(device), output=output)
        began = time.perf_counter()
        call(network, inputs.to(device), output=output)
        a_sample = (time.perf_counter() - began) / len(inputs)
    measured = sum(data.samples for split, data in splits.items() if split != "reset")
    reset = splits["reset"].samples if "reset" in splits else 0
    repaired = sum(count for row, count in points.items() if " + " in row)
    return a_sample * (measured * (2 + sum(points.values())) + reset * repaired)
