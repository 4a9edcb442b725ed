"""Our assignment solver against scipy and lapx, in one run: how many times faster than scipy in float64.

    python benchmarks/assignment.py [matrix.npy …] [--sizes 512,1024] [--runs 3]

Random Gaussian matrices, hard ones of low rank like the similarities of trained networks, and any given
as .npy. Warm solves start from the solution of the matrix before a change of 0.001 standard deviations an
entry. Runs alternate, medians are compared, conversion to what a solver takes is not counted, and every
answer is checked against scipy's optimum.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from rebasin_cli.symmetry import assignment

try:
    import lap
except ImportError:
    lap = None


def low_rank(n: int, random: np.random.Generator) -> np.ndarray:
    """Common directions dominate, as in trained networks: every row wants the same few columns."""
    strength = 1 / np.arange(1, 33)
    a, b = (np.maximum(random.standard_normal((n, 32)) + 0.5, 0) * strength for _ in range(2))
    return a @ b.T


def made(sizes: list[int]) -> dict[str, np.ndarray]:
    random, found = np.random.default_rng(0), {}
    for n in sizes:
        found[f"gaussian {n}"] = random.standard_normal((n, n)).astype(np.float32)
        found[f"low rank {n}"] = low_rank(n, random).astype(np.float32)
    return found


def timed(solvers: dict[str, Callable[[], np.ndarray]], matrix: np.ndarray, runs: int) -> dict[str, float]:
    rows, columns = linear_sum_assignment(matrix, maximize=True)
    best = matrix.astype(np.float64)[rows, columns].sum()
    close = 1e-13 * len(matrix) * np.abs(matrix).max()
    taken: dict[str, list[float]] = {name: [] for name in solvers}
    for _ in range(runs):
        for name, run in solvers.items():
            begin = time.perf_counter()
            perm = run()
            taken[name].append(time.perf_counter() - begin)
            total = matrix.astype(np.float64)[rows, perm].sum()
            if abs(total - best) > close:
                raise SystemExit(f"{name} found {total}, the optimum is {best}")
    return {name: statistics.median(times) for name, times in taken.items()}


def compare(matrix: np.ndarray, runs: int) -> dict[str, float]:
    similarity, double = torch.from_numpy(matrix), matrix.astype(np.float64)
    noise = np.random.default_rng(1).standard_normal(matrix.shape).astype(matrix.dtype)
    start = assignment.solve(similarity + 1e-3 * similarity.std() * torch.from_numpy(noise))
    solvers = {
        "scipy": lambda: linear_sum_assignment(double, maximize=True)[1],
        "cold": lambda: assignment.solve(similarity).perm.numpy(),
        "warm": lambda: assignment.solve(similarity, start=start).perm.numpy(),
    }
    if lap is not None:
        cost = -double
        solvers["lapx lapjvh"] = lambda: lap.lapjvh(cost)[2]
        solvers["lapx lapjvx"] = lambda: lap.lapjvx(cost)[2]
    return timed(solvers, matrix, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", nargs="*", help=".npy files, square")
    parser.add_argument("--sizes", default="512,1024")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    matrices = made([int(n) for n in options.sizes.split(",") if n])
    matrices |= {path.rsplit("/", 1)[-1]: np.load(path) for path in options.matrices}
    print(f"compiled: {assignment.compiled()}; lapx: {lap.__version__ if lap else 'not installed'}")
    print(f"{'':24} {'scipy':>10}   times faster than scipy")
    for name, matrix in matrices.items():
        taken = compare(matrix, options.runs)
        base = taken.pop("scipy")
        ratios = "".join(f"  {who} {base / t:6.1f}" for who, t in taken.items())
        print(f"{name:24} {base * 1e3:7.2f} ms {ratios}", flush=True)


if __name__ == "__main__":
    main()
