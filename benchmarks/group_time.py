"""What a search by groups costs: seconds beside permutations, decompositions, memory for each layer.

    python benchmarks/group_time.py [--depth 12] [--width 768] [--sizes 768,2048] [--layers 1,2] [--threads 1]
        [--llama 2048] [--sweeps 1] [--work FOLDER]

First two GPTs with random weights in memory (LayerNorm, GELU, 12 heads): `wm` by permutations and by groups,
of the latter the first sweeps, and how often which matrices are decomposed. Then one singular value
decomposition (n, n) of a matrix of inner products, in float64, beside scaled Newton steps to the same
rotation, whose number depends on the matrix's condition and not on how near it is to a rotation, so that a
warm start would save none of them, and beside the one product that tells whether the last rotation is still
the best. Last two GPTs with the shapes of a Llama of 1B (width --llama, 32 heads, RMSNorm, SwiGLU, rotary
positions), in a process for each number of layers: peak memory and seconds of --sweeps; what a layer adds is
their difference. They are random, in float32 in memory; with --work FOLDER they are files in bfloat16 there,
removed afterwards, and B is A moved by a random element of all groups, with noise of a tenth of each matrix's
deviation. Seconds are of processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line
from torch import nn

from rebasin_cli import nets
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.inference.inferring import infer
from rebasin_cli.matchers import State
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import FittedSpec
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry import projection
from rebasin_cli.symmetry.form import canonical

LLAMA = {"norm": "rms", "activation": "swiglu", "positions": "rope", "heads": 32}
SWEEPS = 3  # by groups
NOISE = 0.1  # of each matrix's deviation
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


def spec_of(layers: int, width: int) -> tuple[FittedSpec, Any]:
    """The spec and the folds of so many layers, inferred where they are narrow."""
    traced = nets.build("gpt", input_shape=(16,), classes=WORDS, width=TRACED, depth=layers, **LLAMA)
    found = infer(traced, torch.randint(0, WORDS, (1, 16)), prove=False, groups=True)
    with torch.device("meta"):
        network = nets.build("gpt", input_shape=(16,), classes=WORDS, width=width, depth=layers, **LLAMA)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    heads, dim = LLAMA["heads"], width // LLAMA["heads"]
    text = found.text.replace(f"dim: {TRACED // heads}", f"dim: {dim}")
    folds, times = found.folds, width // TRACED
    values = [
        replace(v, part=replace(v.part, start=v.part.start * times, length=v.part.length * times), size=dim)
        for v in folds.values
    ]
    return fit(parse(text, name="llama"), shapes), replace(folds, values=tuple(values))


def random_model(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=rng) * shape[-1] ** -0.5 for name, shape in shapes.items()}


def plant(layers: int, width: int, folder: Path) -> None:
    """Write a.safetensors and b.safetensors, in bfloat16."""
    fitted, folds = spec_of(layers, width)
    shapes, rng = fitted.shapes, torch.Generator().manual_seed(2)
    a = {n: t if t.ndim > 1 else 1 + t for n, t in random_model(shapes, 0).items()}
    a |= {
        n: torch.full(t.shape, (width // LLAMA["heads"]) ** -0.5) for n, t in a.items() if n.endswith("scale")
    }
    write_safetensors(folder / "a.safetensors", {n: t.bfloat16() for n, t in a.items()})
    a = canonical(a, fitted, folds).tensors  # norms have no gains there: a stream may turn
    moved = acts.acted(a, fitted, acts.random(fitted, torch.Generator().manual_seed(1)))
    b = {}
    for name in shapes:
        tensor = moved[name]
        if tensor.ndim > 1:
            tensor = tensor + NOISE * tensor.std() * torch.randn(tensor.shape, generator=rng)
        b[name] = tensor.bfloat16()
    write_safetensors(folder / "b.safetensors", b)


def peak() -> float:
    """The most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def large(layers: int, width: int, sweeps: int, folder: Path | None) -> None:
    """So many sweeps on two models of so many layers; a line of JSON."""
    fitted, folds = spec_of(layers, width)
    if folder is None:
        models = [random_model(fitted.shapes, seed) for seed in (0, 1)]
    else:
        models = [open_checkpoint(str(folder / f"{name}.safetensors")) for name in "ab"]
    began = time.process_time()

    def streams() -> list[float]:
        sizes = [size for size in counted.sizes if size[-1] == width]
        return [sum(each[size] for size in sizes) for each in (counted.sizes, counted.seconds)]

    def said(state: State) -> None:
        told = f"{time.process_time() - began:.0f} s, {peak():.2f} GB, objective {state.objective:.3f}"
        told += ", decompositions {:.0f} s, of the stream {}: {:.0f} s".format(
            sum(counted.seconds.values()), *streams()
        )
        print(f"{layers} layers, sweep {state.sweep}: {told}", file=sys.stderr, flush=True)

    with Counted() as counted:
        done = align(models, fitted, folds=folds, options={"max_sweeps": sweeps}, progress=said)
    result, most = done.result, peak()
    apart = []
    for name, shape in fitted.shapes.items():
        if len(shape) > 1:
            one, other = (model[name].float() for model in done.models)
            apart.append(float((one - other).norm() / one.norm()))
    told = {
        "parameters": sum(math.prod(shape) for shape in fitted.shapes.values()),
        "seconds": time.process_time() - began,
        "decomposed": sum(counted.seconds.values()),
        "streams": streams(),
        "peak": most,
        "sweeps": result.sweeps,
        "apart": sum(apart) / len(apart),
    }
    print(json.dumps(told))


def llamas(layers: list[int], width: int, threads: int, sweeps: int, work: Path | None) -> None:
    of = ("sweeps", "seconds", "of it decompositions", "of the stream", "apart")
    line("date", "layers", "parameters", "models, GB", "peak, GB", *of)
    print("|" + "---|" * 10)
    for depth in layers:
        command = [sys.executable, __file__, "--one", str(depth), "--threads", str(threads)]
        command += ["--sweeps", str(sweeps), "--llama", str(width)]
        with contextlib.ExitStack() as stack:
            if work is not None:
                work.mkdir(parents=True, exist_ok=True)
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=work))
                command += ["--work", folder]
                subprocess.run([*command, "--plant"], check=True)
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        told = json.loads(done.stdout.splitlines()[-1])
        stored = (8 if work is None else 4) * told["parameters"]
        line(
            date.today(), depth, f"{told['parameters'] / 1e6:.0f}M", f"{stored / 2**30:.2f}",
            f"{told['peak']:.2f}", told["sweeps"], f"{told['seconds']:.0f}", f"{told['decomposed']:.0f}",
            "{}: {:.0f} s".format(*told["streams"]), f"{told['apart']:.3f}",
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
    parser.add_argument("--llama", type=int, default=WIDTH, metavar="WIDTH")
    parser.add_argument("--sweeps", type=int, default=1)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plant", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one is not None:
        if given.plant:
            plant(given.one, given.llama, given.work)
        else:
            large(given.one, given.llama, given.sweeps, given.work)
        return
    print(environment())
    if given.depth:
        transformer(given.depth, given.width)
    if given.sizes:
        print()
        decompositions([int(n) for n in given.sizes.split(",")])
    if given.layers:
        print()
        layers = [int(n) for n in given.layers.split(",")]
        llamas(layers, given.llama, given.threads, given.sweeps, given.work)


if __name__ == "__main__":
    main()
