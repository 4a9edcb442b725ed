"""What the benchmarks share: the pairs of models that are matched, how rows are chosen, timed and printed.

A row is a pair of models in memory. "independent": two random initialisations, or the two files of --pairs;
"planted": B is A with every word permuted at random, and noise of 0.1 standard deviations of each tensor.
"""

from __future__ import annotations

import argparse
import os
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

from rebasin_cli import nets, open_checkpoint
from rebasin_cli.matchers import Problem, wm
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import FittedSpec
from rebasin_cli.symmetry import assignment, permutation

NETS = {  # row: (net, input, width)
    "mlp 3x512": ("mlp", (1, 28, 28), 512),
    "mlp 3x1024": ("mlp", (1, 28, 28), 1024),
    "vgg16 for 3x32x32": ("vgg16", (3, 32, 32), 1),
    "resnet20 1x": ("resnet20", (3, 32, 32), 1),
    "resnet20 4x": ("resnet20", (3, 32, 32), 4),
    "resnet20 16x": ("resnet20", (3, 32, 32), 16),
    "vit": ("vit", (3, 32, 32), 128),
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
LONG = 50.0  # seconds, after which a run is not repeated
BRIEF = 0.3  # seconds that a run takes at least, in several calls if it must
SHORT = 5.0  # seconds, after which a task is not tried on one thread as well
BUSY = 0.1  # share of the machine that others may have before a row is marked
QUICK = "mlp 3x512,resnet20 1x"

Tensors = Mapping[str, torch.Tensor]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """One row: two models that one spec describes."""

    name: str
    fitted: FittedSpec
    a: Tensors
    b: Tensors

    def problem(self, seed: int = 0, device: str = "cpu") -> Problem:
        return Problem(self.fitted, (self.a, self.b), seed, device=device)

    def objective(self, permuted: Tensors) -> float:
        """Σ ⟨A, πB⟩ over every tensor that is evidence, in float64."""
        evidence = (name for name in self.fitted.tensors if name not in self.fitted.statistics)
        return sum((self.a[name].double() * permuted[name].double()).sum().item() for name in evidence)

    def reached(self, permutations: permutation.Permutations) -> float:
        return self.objective(permutation.permuted(self.b, self.fitted, permutations))


# ------------------------------------------------------------------------------------------------- models


def random_net(
    net: str, shape: tuple[int, ...], width: float, seed: int, **kwargs
) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    state = nets.build(net, input_shape=shape, classes=10, width=width, **kwargs).state_dict()
    return {name: tensor.float() for name, tensor in state.items()}


def random_transformer(
    seed: int, *, layers: int = LAYERS, width: int = WIDTH, hidden: int = HIDDEN
) -> dict[str, torch.Tensor]:
    square, vector, shapes = (width, width), (width,), {"embedding.weight": (VOCABULARY, width)}
    for i in range(layers):
        shapes |= {f"layers.{i}.{name}.weight": square for name in "qkvo"}
        shapes |= {f"layers.{i}.norm{k}.weight": vector for k in (1, 2)}
        shapes |= {f"layers.{i}.up.weight": (hidden, width), f"layers.{i}.down.weight": (width, hidden)}
    shapes["head.weight"] = (VOCABULARY, width)
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
            command = [sys.executable, "-m", "rebasin_cli", "train", "mlp", "--data", "mnist"]
            command += ["--width", str(width), "--epochs", "3", "--seed", str(seed), "-o", str(file)]
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
    beginnings = arguments.rows.split(",")
    train = arguments.train and any(part.startswith("trained") or not part for part in beginnings)
    for pair in [*arguments.pairs, *(trained(arguments.train) if train else [])]:
        files = [Path(path) for path in pair.split(":")]
        makers[f"trained {':'.join(file.stem for file in files)}"] = partial(_opened, files)
    for name, make in makers.items():
        for kind in KINDS:
            row = f"{name} {kind}"
            if any(row.startswith(part) for part in beginnings):
                a = make(seed=0)
                fitted = described(a, TRANSFORMER_SPEC if name == TRANSFORMER else None)
                b = planted(fitted, a) if kind == "planted" else make(seed=1)
                before = processors()
                yield Case(row, fitted, a, b)
                all_busy, mine, whole = (now - then for now, then in zip(processors(), before, strict=True))
                if whole and (others := (all_busy - mine) / whole) > BUSY:
                    print(f"busy: others had {others:.0%} of the machine meanwhile", flush=True)


def _opened(files: list[Path], seed: int) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in open_checkpoint(files[seed]).items()}


# ------------------------------------------------------------------------------------- command line, time


def parser(doc: str, *, rows: bool = True) -> argparse.ArgumentParser:
    """Number of runs, rows and pairs: the same options for every benchmark."""
    names = ", ".join(f"{name} {kind}" for name in [*NETS, TRANSFORMER] for kind in KINDS)
    found = argparse.ArgumentParser(
        description=doc.partition("\n")[0], epilog=f"Rows: {names}; trained …" if rows else None
    )
    found.add_argument("--runs", type=int, default=3)
    found.add_argument("--quick", action="store_true", help="one run of a few small rows")
    if rows:
        found.add_argument("--rows", help="comma-separated beginnings of the rows' names")
        found.add_argument("--pairs", nargs="*", default=[], help="trained pairs A:B to measure as well")
        found.add_argument(
            "--train", type=Path, metavar="FOLDER", help="train two pairs of mlps on MNIST, once"
        )
    return found


def begin(found: argparse.ArgumentParser, rows: str = "") -> argparse.Namespace:
    """The options, after printing what everything below was measured on, and warming up.

    `rows` are those of a benchmark that is not asked for others; all where it is empty.
    """
    arguments = found.parse_args()
    if arguments.quick:
        arguments.runs = 1
    if getattr(arguments, "rows", "") is None:
        arguments.rows = QUICK if arguments.quick else rows
    print(environment(), flush=True)
    warm_up()
    return arguments


def warm_up() -> None:
    """What a process does once, done."""
    a, b = (random_net(*NETS["resnet20 1x"], seed) for seed in (0, 1))
    wm.match(Problem(described(a), (a, b)))


def as_command(arguments: list[str]) -> str:
    """Code that runs a command line as `rebasin` does, and goes on."""
    return (
        "import contextlib\nfrom rebasin_cli.__main__ import main\n"
        f"with contextlib.suppress(SystemExit):\n    main({arguments!r})"
    )


def environment() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "").splitlines()
        if line.startswith("model name")
    ]
    cpu = f"{models[0] if models else platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scipy"))
    solver = "compiled" if assignment.compiled() else "scipy's"
    threads = torch.get_num_threads()
    return (
        f"{date.today()}, {cpu}, {threads} threads that multiply {speedup():.1f} times as fast as one, "
        f"Python {platform.python_version()}, {versions}, {solver} solver"
    )


def speedup() -> float:
    """What all threads gain on one in a product; near 1 where others use the machine: times say little."""
    threads, matrix, taken = torch.get_num_threads(), torch.randn(1024, 1024), {}
    for count in (1, threads):
        torch.set_num_threads(count)
        taken[count] = median(timed(torch.mm, matrix, matrix)[0] for _ in range(9))
    return taken[1] / taken[threads]


def processors() -> tuple[float, float, float]:
    """Seconds of all processors so far: busy, busy with this process and its children, in all; Linux only."""
    if not Path("/proc/stat").exists():
        return 0.0, 0.0, 0.0
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in Path("/proc/stat").read_text().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(os.times()[:4]), sum(ticks)  # idle, waiting for a disk


def timed(task: Callable[..., Any], *args: Any, clock: Clock = time.perf_counter) -> tuple[float, Any]:
    """Seconds, and the result."""
    began = clock()
    result = task(*args)
    return clock() - began, result


def on_one_thread(task: Callable[[int], Any], seed: int) -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return task(seed)
    finally:
        torch.set_num_threads(threads)


def alternated(
    tasks: Mapping[str, Callable[[int], Any]], runs: int, clock: Clock = time.perf_counter
) -> dict[str, list[tuple[float, Any]]]:
    """Every task with seed 0, then with seed 1, …: seconds and results. What takes LONG is not run again.

    Less than BRIEF seconds are spent on calls with the same seed, and their mean counts: how the task before
    left caches and memory is otherwise most of a few milliseconds.
    """
    taken: dict[str, list[tuple[float, Any]]] = {name: [] for name in tasks}
    for seed in range(runs):
        for name, task in tasks.items():
            if not any(seconds > LONG for seconds, _ in taken[name]):
                taken[name].append(repeated(task, seed, clock))
    return taken


def repeated(task: Callable[[int], Any], seed: int, clock: Clock) -> tuple[float, Any]:
    """Mean seconds of as many calls as take BRIEF, and the last one's result."""
    total, count = 0.0, 0
    while total < BRIEF:
        seconds, result = timed(task, seed, clock=clock)
        total, count = total + seconds, count + 1
    return total / count, result


def change(value: float, base: float) -> str:
    """By how much a value is above another, in percent."""
    relative = value / base - 1
    return "equal" if abs(relative) < 5e-7 else f"{relative:+.4%}"


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
