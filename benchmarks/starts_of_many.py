"""What `merge-many` and `universe` reach from their starts: the sum over pairs of inner products, by effort.

    python benchmarks/starts_of_many.py [FOLDER]

Three untrained models each, and, with a folder, MLPs of the shipped digits, which are trained there once.
Seconds are the processor's, of one thread.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line

from rebasin_cli import nets, open_checkpoint
from rebasin_cli.matchers import Problem, merge_many, universe
from rebasin_cli.spec import library

Model = dict[str, torch.Tensor]


def untrained(net: str, shape: tuple[int, ...], **how: Any) -> list[Model]:
    found = []
    for seed in range(3):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    cases = {
        "mlp 64": partial(untrained, "mlp", (1, 28, 28), width=64),
        "resnet20 1x": partial(untrained, "resnet20", (3, 32, 32)),
        "vit": partial(untrained, "vit", (3, 32, 32)),
    }
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for width in (32, 64, 128):
            for count in (3, 5):
                cases[f"{count} digits mlps, {width} wide"] = partial(digits, folder, width, count)
    print(environment())
    line("date", "models", "method", "effort", "sum over pairs", "seconds")
    print("|" + "---|" * 6)
    for name, make in cases.items():
        models = make()
        fitted = library.find({name: tuple(tensor.shape) for name, tensor in models[0].items()})
        for method in (merge_many, universe):
            for effort in ("fast", "normal", "high"):
                began = time.process_time()
                found = method.match(Problem(fitted, tuple(models)), method.Options(effort=effort))
                seconds = time.process_time() - began
                told = f"{found.objective_after:.4f}", f"{seconds:.2f}"
                line(date.today(), name, method.__name__.rpartition(".")[2], effort, *told)


if __name__ == "__main__":
    main()
