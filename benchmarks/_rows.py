"""What the benchmarks share: the pairs of models that are matched, how rows are chosen, timed and printed.

A row is a pair of models in memory. "independent": two random initialisations, or two files given by --pairs;
"planted": B is A with every word permuted at random, and noise of a tenth of each tensor's standard deviation.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from rebasin_cli import assignment, nets, open_checkpoint, permutation
from rebasin_cli.matchers import Problem, wm
from rebasin_cli.randomness import generator
from rebasin_cli.spec import library
from rebasin_cli.spec.fitting import fit
from rebasin_cli.spec.parsing import parse
from rebasin_cli.spec.spec import FittedSpec

NETS = {  # row: (net, input, width)
    "mlp 3x512": ("mlp", (1, 28, 28), 512),
    "mlp 3x1024": ("mlp", (1, 28, 28), 1024),
    "vgg16 for 3x32x32": ("vgg16", (3, 32, 32), 1),
    "resnet20 1x": ("resnet20", (3, 32, 32), 1),
    "resnet20 4x": ("resnet20", (3, 32, 32), 4),
    "resnet20 16x": ("resnet20", (3, 32, 32), 16),
    "resnet50": ("resnet50", (3, 224, 224), 1),
}
TRANSFORMER = "transformer 12x768"
TRANSFORMER_SPEC = """\
# 12 layers of width 768: residual stream r, heads of 64 whose inside stays in order, hidden units h{i}
tensors:
  embedding.weight: ". r"
  layers.{i}.norm1.weight: "r"
  layers.{i}.q.weight: "(heads{i} 64) r"
  layers.{i}.k.weight: "(heads{i} 64) r"
  layers.{i}.v.weight: "(heads{i} 64) r"
  layers.{i}.o.weight: "r (heads{i} 64)"
  layers.{i}.norm2.weight: "r"
  layers.{i}.up.weight: "h{i} r"
  layers.{i}.down.weight: "r h{i}"
  head.weight: ". r"
"""
LAYERS, WIDTH, HIDDEN, VOCABULARY = 12, 768, 3072, 4096
KINDS = ("independent", "planted")
NOISE = 0.1  # of each tensor's own standard deviation
LONG = 100.0  # seconds, after which a run is not repeated
QUICK = "mlp 3x512,resnet20 1x"

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One row: two models that one spec describes."""

    name: str
    fitted: FittedSpec
    a: Tensors
    b: Tensors

    def problem(self, seed: int = 0) -> Problem:
        return Problem(self.fitted, (self.a, self.b), seed)

    def objective(self, permuted: Tensors) -> float:
        """Σ ⟨A, πB⟩ over every tensor that is evidence, in float64."""
        evidence = (name for name in self.fitted.tensors if name not in self.fitted.statistics)
        return sum((self.a[name].double() * permuted[name].double()).sum().item() for name in evidence)

    def reached(self, permutations: permutation.Permutations) -> float:
        return self.objective(permutation.permuted(self.b, self.fitted, permutations))


# ------------------------------------------------------------------------------------------------- models


def random_net(net: str, shape: tuple[int, ...], width: float, seed: int, **kwargs) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    state = nets.build(net, input_shape=shape, classes=10, width=width, **kwargs).state_dict()
    return {name: tensor.float() for name, tensor in state.items()}


def random_transformer(seed: int) -> dict[str, torch.Tensor]:
    square, vector, shapes = (WIDTH, WIDTH), (WIDTH,), {"embedding.weight": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        shapes |= {f"layers.{i}.{name}.weight": square for name in "qkvo"}
        shapes |= {f"layers.{i}.norm{k}.weight": vector for k in (1, 2)}
        shapes |= {f"layers.{i}.up.weight": (HIDDEN, WIDTH), f"layers.{i}.down.weight": (WIDTH, HIDDEN)}
    shapes["head.weight"] = (VOCABULARY, WIDTH)
    rng = generator(seed, "transformer")
    return {
        name: torch.ones(shape) if shape == vector else 0.02 * torch.randn(shape, generator=rng)
        for name, shape in shapes.items()
    }


def described(a: Tensors, spec: str | None = None) -> FittedSpec:
    shapes = {name: tuple(tensor.shape) for name, tensor in a.items()}
    return library.find(shapes) if spec is None else fit(parse(spec, name="benchmark"), shapes)


def planted(fitted: FittedSpec, a: Tensors) -> dict[str, torch.Tensor]:
    rng = generator(0, "benchmark noise")
    noisy = {
        name: tensor + NOISE * tensor.std(correction=0) * torch.randn(tensor.shape, generator=rng)
        for name, tensor in a.items()
    }
    return dict(permutation.permuted(noisy, fitted, permutation.random(fitted.words, rng)))


def trained(folder: Path) -> list[str]:
    """Two pairs of mlps trained on MNIST for three epochs, kept in the folder; none where that fails."""
    pairs = []
    for width in (512, 1024):
        files = [folder / f"mlp{width}_s{seed}.safetensors" for seed in (0, 1)]
        for seed, file in enumerate(files):
            command = [sys.executable, "-m", "rebasin_cli", "train", "mlp", "--data", "mnist", "-o", str(file)]
            command += ["--width", str(width), "--epochs", "3", "--seed", str(seed)]
            folder.mkdir(parents=True, exist_ok=True)
            if not file.exists() and subprocess.run(command).returncode:
                print("no trained pairs: the training failed", flush=True)
                return []
        pairs.append(":".join(map(str, files)))
    return pairs


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """The rows that the command line asks for, each made when its turn comes."""
    makers = {name: partial(random_net, *net) for name, net in NETS.items()}
    makers[TRANSFORMER] = random_transformer
    for pair in [*arguments.pairs, *(trained(arguments.train) if arguments.train else [])]:
        files = [Path(path) for path in pair.split(":")]
        makers[f"trained {':'.join(file.stem for file in files)}"] = partial(_opened, files)
    for name, make in makers.items():
        for kind in KINDS:
            row = f"{name} {kind}"
            if any(row.startswith(part) for part in arguments.rows.split(",")):
                a = make(seed=0)
                fitted = described(a, TRANSFORMER_SPEC if name == TRANSFORMER else None)
                yield Case(row, fitted, a, planted(fitted, a) if kind == "planted" else make(seed=1))


def _opened(files: list[Path], seed: int) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in open_checkpoint(files[seed]).items()}


# ------------------------------------------------------------------------------------- command line, time


def parser(doc: str) -> argparse.ArgumentParser:
    """Rows, pairs, number of runs: the same options for every benchmark that has rows."""
    found = argparse.ArgumentParser(
        description=doc.partition("\n")[0],
        epilog="Rows: " + ", ".join(f"{name} {kind}" for name in [*NETS, TRANSFORMER] for kind in KINDS),
    )
    found.add_argument("--rows", default="", help="comma-separated beginnings of the rows' names; all if left out")
    found.add_argument("--runs", type=int, default=3)
    found.add_argument("--pairs", nargs="*", default=[], help="trained pairs A:B to measure as well")
    found.add_argument("--train", type=Path, metavar="FOLDER", help="train two pairs of mlps on MNIST, once")
    found.add_argument("--quick", action="store_true", help=f"one run of few rows: {QUICK}")
    return found


def begin(found: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, after printing what everything below was measured on, and warming up."""
    arguments = found.parse_args()
    if arguments.quick:
        arguments.runs, arguments.rows = 1, arguments.rows or QUICK
    print(environment(), flush=True)
    a, b = (random_net("resnet20", (3, 32, 32), 1, seed) for seed in (0, 1))
    wm.match(Problem(described(a), (a, b)))
    return arguments


def environment() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "").splitlines()
        if line.startswith("model name")
    ]
    cpu = f"{models[0] if models else platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scipy"))
    solver = "compiled" if assignment.compiled() else "scipy's"
    return (
        f"{date.today()}, {cpu}, {torch.get_num_threads()} threads, Python {platform.python_version()}, "
        f"{versions}, {solver} solver"
    )


def timed(task: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """Seconds, and the result."""
    began = time.perf_counter()
    result = task(*args)
    return time.perf_counter() - began, result


def alternated(tasks: Mapping[str, Callable[[int], Any]], runs: int) -> dict[str, list[tuple[float, Any]]]:
    """Every task with seed 0, then with seed 1, …: seconds and results. What takes LONG is run once."""
    taken: dict[str, list[tuple[float, Any]]] = {name: [] for name in tasks}
    for seed in range(runs):
        for name, task in tasks.items():
            if not any(seconds > LONG for seconds, _ in taken[name]):
                taken[name].append(timed(task, seed))
    return taken


def median(values: Any) -> float:
    return statistics.median(values)


def line(*cells: Any) -> None:
    """One row of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def heading(*columns: str) -> None:
    line("date", *columns)
    print("|" + "---|" * (len(columns) + 1), flush=True)


def row(*cells: Any) -> None:
    line(date.today(), *cells)
