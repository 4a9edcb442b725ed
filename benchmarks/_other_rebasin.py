"""Runs the package `rebasin` where it is installed; started by against_rebasin.py, which says how.

    python _other_rebasin.py FOLDER MODULE:FACTORY RUNS

FOLDER has a.pt and b.pt, the tensors of two networks that FACTORY makes from their shapes, and gets
moved.pt, what became of b in the first run. Prints a line of JSON: median seconds, runs, and by how much the
outputs of b changed, relative to the largest.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from rebasin import PermutationCoordinateDescent

from rebasin_cli import nets

LONG = 50.0  # seconds, after which a run is not repeated


def main(folder: Path, factory: str, runs: int) -> None:
    a, b = (torch.load(folder / name) for name in ("a.pt", "b.pt"))
    found: dict[str, list[float]] = {"traced": [], "searched": [], "applied": [], "changed": []}
    for seed in range(runs):
        models = []
        for tensors in (a, b):
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            models.append(nets.resolve(factory)(shapes).eval())
            models[-1].load_state_dict(tensors)
        inputs = torch.randn(2, *models[0].example_shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            before = models[1](inputs)
        torch.manual_seed(seed)
        times = [time.perf_counter()]
        descent = PermutationCoordinateDescent(*models, inputs)
        times.append(time.perf_counter())
        descent.calculate_permutations()
        times.append(time.perf_counter())
        descent.apply_permutations()
        times.append(time.perf_counter())
        for name, began, ended in zip(found, times, times[1:], strict=False):
            found[name].append(ended - began)
        with torch.no_grad():
            change = (models[1](inputs) - before).abs().max() / before.abs().max()
        found["changed"].append(change.item())
        if seed == 0:
            torch.save(models[1].state_dict(), folder / "moved.pt")
        if found["searched"][-1] > LONG:
            break
    medians = {name: statistics.median(values) for name, values in found.items()}
    print(json.dumps(medians | {"runs": len(found["traced"])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
