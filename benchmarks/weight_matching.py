"""Weight matching against Algorithm 1 written plainly, in one run: time ratio and objective.

    python benchmarks/weight_matching.py [--rows NAME,…] [--runs 3] [--pairs a.safetensors:b.safetensors …]

The baseline solves every layer in random order in each sweep, with scipy in float64 and full products, and
stops when no layer improves by more than 1e-12 (Ainsworth et al. 2022, Algorithm 1). Runs alternate, and
the layers come in the same random orders in both; printed are medians, the ratio of the medians (larger is
faster) and both objectives (larger is better).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from rebasin_cli import nets, open_checkpoint, permutation
from rebasin_cli.matchers import Problem, wm
from rebasin_cli.randomness import generator
from rebasin_cli.spec import library
from rebasin_cli.spec.atoms import atoms
from rebasin_cli.spec.spec import FittedSpec

ROWS = {  # name: (net, input, width, what B is)
    "mlp 3×512, independent": ("mlp", (1, 28, 28), 512, "independent"),
    "resnet20 1×, independent": ("resnet20", (3, 32, 32), 1, "independent"),
    "resnet20 4×, independent": ("resnet20", (3, 32, 32), 4, "independent"),
    "resnet20 4×, planted + noise": ("resnet20", (3, 32, 32), 4, "planted"),
    "resnet50, planted + noise": ("resnet50", (3, 224, 224), 1, "planted"),
}
NOISE = 0.1  # of each tensor's own standard deviation

Arrays = Mapping[str, np.ndarray]


def plain(fitted: FittedSpec, a: Arrays, b: Arrays, seed: int) -> dict[str, np.ndarray]:
    """Algorithm 1 as a reader of the paper would write it."""
    parts = list(atoms(fitted))
    view = {part: (_numpy(part, a), _numpy(part, b)) for part in parts}
    perms = {word: np.arange(size) for word, size in fitted.words.items()}
    words, sweep, improved = sorted(perms), 0, True
    while improved:
        improved = False
        order = torch.randperm(len(words), generator=generator(seed, f"wm sweep {sweep}"))  # as wm draws it
        sweep += 1
        for word in (words[k] for k in order.tolist()):
            similarity = np.zeros((fitted.words[word],) * 2)
            for part in parts:
                for axis in (d for d, here in enumerate(part.words) if here == word):
                    x, y = view[part]
                    for d, other in enumerate(part.words):
                        if other is not None and d != axis:
                            y = np.take(y, perms[other], axis=d)
                    x, y = (np.moveaxis(z, axis, 0).reshape(len(similarity), -1) for z in (x, y))
                    similarity += x @ y.T
            rows, columns = linear_sum_assignment(similarity, maximize=True)
            gain = similarity[rows, columns].sum() - similarity[rows, perms[word]].sum()
            improved |= bool(gain > 1e-12)
            perms[word] = columns
    return perms


def _numpy(part, tensors: Arrays) -> np.ndarray:
    return part.view(torch.from_numpy(tensors[part.tensor])).numpy()


def objective(fitted: FittedSpec, a: Mapping, b: Mapping, perms: Mapping[str, torch.Tensor]) -> float:
    moved = permutation.permuted(b, fitted, perms)
    evidence = (name for name in fitted.tensors if name not in fitted.statistics)
    return sum((a[name].double() * moved[name].double()).sum().item() for name in evidence)


def models(row: str) -> tuple[FittedSpec, dict, dict]:
    net, shape, width, kind = ROWS[row]
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = nets.build(net, input_shape=shape, classes=10, width=width).state_dict()
        found.append({name: tensor.float() for name, tensor in state.items()})
    a, b = found
    fitted = library.find({name: tuple(tensor.shape) for name, tensor in a.items()})
    if kind == "planted":
        rng = generator(0, "benchmark noise")
        noisy = {
            name: tensor + NOISE * tensor.std(correction=0) * torch.randn(tensor.shape, generator=rng)
            for name, tensor in a.items()
        }
        b = dict(permutation.permuted(noisy, fitted, permutation.random(fitted.words, rng)))
    return fitted, a, b


def compare(name: str, fitted: FittedSpec, a: Mapping, b: Mapping, runs: int) -> None:
    wide = [{k: t.double().numpy() for k, t in m.items() if t.is_floating_point()} for m in (a, b)]
    seconds: dict[str, list[float]] = {"plain": [], "wm": []}
    values: dict[str, list[float]] = {"plain": [], "wm": []}
    for seed in range(runs):
        began = time.perf_counter()
        perms = plain(fitted, *wide, seed)
        seconds["plain"].append(time.perf_counter() - began)
        values["plain"].append(objective(fitted, a, b, {w: torch.from_numpy(p) for w, p in perms.items()}))
        began = time.perf_counter()
        result = wm.match(Problem(fitted, (a, b), seed))
        seconds["wm"].append(time.perf_counter() - began)
        values["wm"].append(objective(fitted, a, b, result.permutations[0]))
    slow, fast = (statistics.median(seconds[key]) for key in ("plain", "wm"))
    low, high = (statistics.median(values[key]) for key in ("plain", "wm"))
    ratio, gain = slow / fast, high / low - 1
    print(
        f"{name:<34} {slow:>8.2f} s {fast:>8.2f} s  {ratio:>5.1f}×  {low:>12.4f} {high:>12.4f} {gain:>+9.4%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", help="comma-separated beginnings of the rows' names; all if left out")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pairs", nargs="*", default=[], help="trained pairs A:B to measure as well")
    arguments = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads; medians of {arguments.runs} alternated runs")
    print(f"{'':<34} {'plain':>10} {'wm':>10}  {'ratio':>6}  {'objective':>12} {'objective wm':>12}")
    for name in ROWS:
        if arguments.rows is None or any(name.startswith(part) for part in arguments.rows.split(",")):
            compare(name, *models(name), arguments.runs)
    for pair in arguments.pairs:
        a, b = (dict(open_checkpoint(path)) for path in pair.split(":"))
        fitted = library.find({name: tuple(tensor.shape) for name, tensor in a.items()})
        compare(pair.rsplit("/", 1)[-1], fitted, a, b, arguments.runs)


if __name__ == "__main__":
    main()
