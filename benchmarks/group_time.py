"""What a search by groups costs: seconds beside permutations, decompositions, memory for each layer.

    python benchmarks/group_time.py [--depth 12] [--width 768] [--sizes 768,2048] [--layers 1,2] [--threads 1]

First two GPTs with random weights in memory (LayerNorm, GELU, 12 heads): `wm` by permutations and by groups,
of the latter the first sweeps, and how often which matrices are decomposed. Then one singular value
decomposition (n, n) of a matrix of inner products, in float64, beside scaled Newton steps to the same
rotation, whose number depends on the matrix's condition and not on how near it is to a rotation, so that a
warm start would save none of them, and beside the one product that tells whether the last rotation is still
the best. Last two GPTs with the shapes of a Llama of 1B (width 2048, 32 heads, RMSNorm, SwiGLU, rotary
positions), one sweep, in a process for each number of layers: peak memory and seconds; what a layer adds is
their difference. Seconds are of processor time.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections import Counter
from datetime import date
from typing import Any

import torch
from _rows import environment, line
from torch import nn

from rebasin_cli import nets
from rebasin_cli.canonical.form import canonical
from rebasin_cli.groups import projection
from rebasin_cli.inference.inferring import infer
from rebasin_cli.matchers.search.align import align
from rebasin_cli.spec.fitting import fit
from rebasin_cli.spec.parsing import parse

LLAMA = {"norm": "rms", "activation": "swiglu", "positions": "rope", "heads": 32}
SWEEPS = 3  # by groups
WORDS, WIDTH, TRACED = 32_000, 2048, 128  # the width that is traced: the graph is the same


class Counted:
    """Counts decompositions by size while it lasts, and their seconds."""

    def __init__(self) -> None:
        self.sizes: Counter[tuple[int, ...]] = Counter()
        self.seconds: Counter[tuple[int, ...]] = Counter()

    def __enter__(self) -> Counted:
        self._own = torch.linalg.svd

        def svd(matrix: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            found = self._own(matrix, *args, **kwargs)
            size = tuple(matrix.shape)
            self.sizes[size] += 1
            self.seconds[size] += time.process_time() - began
            return found

        torch.linalg.svd = svd
        return self

    def __exit__(self, *_: Any) -> None:
        torch.linalg.svd = self._own


def drawn(network: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Random weights, their gains and biases, too."""
    rng = torch.Generator().manual_seed(seed)
    found = {}
    for name, tensor in network.state_dict().items():
        if name.endswith("scale") or not tensor.is_floating_point():
            found[name] = tensor
        elif tensor.ndim > 1:
            found[name] = torch.randn(tensor.shape, generator=rng) * tensor.shape[-1] ** -0.5
        else:
            found[name] = name.endswith("weight") + 0.1 * torch.randn(tensor.shape, generator=rng)
    return found


def transformer(depth: int, width: int) -> None:
    network = nets.build("gpt", input_shape=(64,), classes=256, width=width, depth=depth, heads=12)
    found = infer(network, torch.randint(0, 256, (1, 64)), prove=False, groups=True)
    models = [drawn(network, seed) for seed in (0, 1)]
    line("date", "search", "sweeps", "solves", "seconds", "a sweep, s", "decompositions, s")
    print("|" + "---|" * 7)
    for name, folds, limit in (("wm, permutations", None, 100), ("wm, groups", found.folds, SWEEPS)):
        with Counted() as counted:
            began = time.process_time()
            result = align(models, found.fitted, folds=folds, options={"max_sweeps": limit}).result
            seconds = time.process_time() - began
        told = "; ".join(
            f"{n} of {'×'.join(map(str, size))}: {counted.seconds[size]:.1f}"
            for size, n in counted.sizes.items()
        )
        each = seconds / max(1, result.sweeps)
        line(date.today(), name, result.sweeps, result.solves, f"{seconds:.1f}", f"{each:.1f}", told)
    began = time.process_time()
    for model in models:
        canonical(model, found.fitted, found.folds)
    seconds = time.process_time() - began
    line(date.today(), "both canonical forms (part of the last row)", "", "", f"{seconds:.1f}", "", "")


def polar(matrix: torch.Tensor, tolerance: float = 1e-12) -> tuple[torch.Tensor, int]:
    """The rotation nearest to a matrix by scaled Newton steps, and how many they were.

    Higham 1986, "Computing the polar decomposition, with applications".
    """
    x = matrix
    for step in range(1, 60):
        inverse = torch.linalg.inv(x).T
        scale = (inverse.norm() / x.norm()).sqrt() if step < 12 else 1.0
        new = (scale * x + inverse / scale) / 2
        if (new - x).norm() <= tolerance * new.norm():
            return new, step
        x = new
    return x, 60


def decompositions(sizes: list[int]) -> None:
    line("date", "n", "svd, s", "Newton, s", "steps", "a look, s", "they differ by")
    print("|" + "---|" * 7)
    for n in sizes:
        rng = torch.Generator().manual_seed(n)
        matrix = torch.randn(n, n, generator=rng, dtype=torch.float64)
        matrix += 40 * torch.eye(n, dtype=torch.float64)  # two models that match in part
        ends = [time.process_time()]
        cold = projection.rotation(matrix[None], "O")[0][0]
        ends.append(time.process_time())
        other, steps = polar(matrix)
        ends.append(time.process_time())
        _ = cold.T @ matrix
        ends.append(time.process_time())
        told = (f"{after - before:.2f}" for before, after in zip(ends, ends[1:], strict=False))
        svd, newton, look = told
        line(date.today(), n, svd, newton, steps, look, f"{float((cold - other).abs().max()):.0e}")


def large(layers: int) -> None:
    """One sweep on two models of so many layers; a line of JSON."""
    traced = nets.build("gpt", input_shape=(16,), classes=WORDS, width=TRACED, depth=layers, **LLAMA)
    found = infer(traced, torch.randint(0, WORDS, (1, 16)), prove=False, groups=True)
    with torch.device("meta"):
        network = nets.build("gpt", input_shape=(16,), classes=WORDS, width=WIDTH, depth=layers, **LLAMA)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    heads, dim = LLAMA["heads"], WIDTH // LLAMA["heads"]
    text = found.text.replace(f"dim: {TRACED // heads}", f"dim: {dim}")
    fitted = fit(parse(text, name="llama"), shapes)
    models = []
    for seed in (0, 1):
        rng = torch.Generator().manual_seed(seed)
        models.append({n: torch.randn(s, generator=rng) * s[-1] ** -0.5 for n, s in shapes.items()})
    began = time.process_time()
    with Counted() as counted:
        result = align(models, fitted, folds=found.folds, options={"max_sweeps": 1}).result
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    told = {
        "parameters": sum(math.prod(shape) for shape in shapes.values()),
        "seconds": time.process_time() - began,
        "decomposed": sum(counted.seconds.values()),
        "streams": sum(n for size, n in counted.sizes.items() if size[-1] == WIDTH),
        "peak": peak,
        "sweeps": result.sweeps,
    }
    print(json.dumps(told))


def llamas(layers: list[int], threads: int) -> None:
    of = ("a sweep, s", "of it decompositions", "of width 2048")
    line("date", "layers", "parameters", "models, GB", "peak, GB", *of)
    print("|" + "---|" * 8)
    for depth in layers:
        command = [sys.executable, __file__, "--one", str(depth), "--threads", str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        told = json.loads(done.stdout.splitlines()[-1])
        line(
            date.today(), depth, f"{told['parameters'] / 1e6:.0f}M", f"{8 * told['parameters'] / 2**30:.2f}",
            f"{told['peak']:.2f}", f"{told['seconds']:.0f}", f"{told['decomposed']:.0f}", told["streams"],
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--sizes", default="768,2048")
    parser.add_argument("--layers", default="1,2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one is not None:
        large(given.one)
        return
    print(environment())
    if given.depth:
        transformer(given.depth, given.width)
    for some, measure in ((given.sizes, decompositions), (given.layers, lambda n: llamas(n, given.threads))):
        if some:
            print()
            measure([int(n) for n in some.split(",")])


if __name__ == "__main__":
    main()
