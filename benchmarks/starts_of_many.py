"""What `merge-many` and `universe` reach from their starts: the sum over pairs of inner products, by effort.

    python benchmarks/starts_of_many.py [FOLDER] [--before CHECKOUT] [--efforts fast normal high] [--seeds 1]
                                        [--counts 5 10 20]

Three untrained models each, and, with a folder, MLPs of the shipped digits, which are trained there once; or
`--counts` of untrained MLPs, 64 wide for 64 inputs, by `merge-many` alone.
CHECKOUT is one with a program for permutations and one for groups (0.2.0, before they were one): both are run
on the same models, and their ends are summed as ours. With several seeds means are shown. Seconds are the
processor's, of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line
from safetensors.torch import save_file

from rebasin_cli import nets, open_checkpoint
from rebasin_cli.matchers import Problem, merge_many, universe
from rebasin_cli.spec import library

Model = dict[str, torch.Tensor]


def untrained(net: str, shape: tuple[int, ...], count: int = 3, **how: Any) -> list[Model]:
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        state = nets.build(net, input_shape=shape, classes=10, **how).state_dict()
        found.append({name: tensor.float() for name, tensor in state.items()})
    return found


def digits(folder: Path, width: int, count: int) -> list[Model]:
    files = [folder / f"digits{width}_s{seed}.safetensors" for seed in range(count)]
    for seed, file in enumerate(files):
        command = [sys.executable, "-m", "rebasin_cli", "train", "mlp", "--data", "digits", "--width", width]
        command += ["--epochs", 20, "--seed", seed, "-o", file]
        if not file.exists():
            subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return [{name: t.float() for name, t in open_checkpoint(file).items()} for file in files]


BEFORE = """
import json, sys, time
import torch
from safetensors.torch import load_file
from rebasin_cli.matchers import Problem, merge_many, universe
from rebasin_cli.matchers.grouped import many, universe as grouped
from rebasin_cli.matchers.weights.many import objective_of
from rebasin_cli.permutations import permutation
from rebasin_cli.spec import library
torch.set_num_threads(1)
models = tuple(load_file(file) for file in sys.argv[2:])
fitted = library.find({name: tuple(tensor.shape) for name, tensor in models[0].items()})
ways = {
    "merge-many, permutations": merge_many.match,
    "merge-many, groups": lambda problem: many.match(problem, 100),
    "universe, permutations": universe.match,
    "universe, groups": lambda problem: grouped.match(problem, 1e-3, True, 100),
}
found = {}
for name, match in ways.items():
    for seed in range(int(sys.argv[1])):
        problem = Problem(fitted, models, seed=seed)
        began = time.process_time()
        perms = match(problem).permutations
        seconds = time.process_time() - began
        whole = objective_of(problem, [permutation.identity(fitted.words), *perms])
        found.setdefault(name, []).append((whole, seconds))
print(json.dumps(found))
"""


def before(checkout: Path, models: list[Model], seeds: int) -> dict[str, list[tuple[float, float]]]:
    """What the two programs of a checkout reach: sums and seconds, by program, one for each seed."""
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, f"{k}.safetensors") for k in range(len(models))]
        for file, model in zip(files, models, strict=True):
            save_file({name: tensor.contiguous() for name, tensor in model.items()}, file)
        command = [sys.executable, "-c", BEFORE, str(seeds), *files]
        env = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, cwd=folder)
    found: dict[str, list[tuple[float, float]]] = json.loads(done.stdout)
    return found


def told(runs: list[tuple[float, float]]) -> str:
    whole, seconds = (statistics.mean(each) for each in zip(*runs, strict=True))
    return f"{whole:.2f} ({seconds:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--efforts", nargs="+", default=["fast", "normal", "high"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--counts", nargs="+", type=int, default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases = {
        "3 untrained mlp 64": partial(untrained, "mlp", (1, 28, 28), width=64),
        "3 untrained resnet20 1x": partial(untrained, "resnet20", (3, 32, 32)),
        "3 untrained vit": partial(untrained, "vit", (3, 32, 32)),
    }
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        for width in (32, 64, 128):
            for count in (3, 5):
                cases[f"{count} digits mlps, {width} wide"] = partial(digits, given.folder, width, count)
    if given.counts:
        cases = {
            f"{n} untrained mlp 64, small": partial(untrained, "mlp", (1, 8, 8), n, width=64)
            for n in given.counts
        }
    print(environment())
    old = ("before: permutations (s)", "before: groups (s)") if given.before else ()
    line("date", "models", "method", *old, *(f"{effort} (s)" for effort in given.efforts))
    print("|" + "---|" * (3 + len(old) + len(given.efforts)))
    for name, make in cases.items():
        models = make()
        fitted = library.find({name: tuple(tensor.shape) for name, tensor in models[0].items()})
        known = before(given.before, models, given.seeds) if given.before else {}
        for method in (merge_many, universe)[: 1 if given.counts else None]:
            title = method.__name__.rpartition(".")[2].replace("_", "-")
            cells = [told(runs) for way, runs in known.items() if way.startswith(title)]
            for effort in given.efforts:
                runs = []
                for seed in range(given.seeds):
                    began = time.process_time()
                    problem = Problem(fitted, tuple(models), seed=seed)
                    found = method.match(problem, method.Options(effort=effort))
                    runs.append((found.objective_after, time.process_time() - began))
                cells.append(told(runs))
            line(date.today(), name, title, *cells)


if __name__ == "__main__":
    main()
