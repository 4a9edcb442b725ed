"""Weight matching against Algorithm 1 written plainly, in one run: time ratio and objective.

    python benchmarks/weight_matching.py [--rows NAME,…] [--runs 3] [--pairs a.safetensors:b.safetensors …]

The baseline solves every layer in random order in each sweep, with scipy in float64 and full products, and
stops when no layer improves by more than 1e-12 (Ainsworth et al. 2022, Algorithm 1). It multiplies with
torch, as wm does. Runs of both alternate with seeds 0, 1, …, each of one call or of as many as take 0.3
seconds; printed are medians, the ratio of the medians (larger is faster) and wm's objective against the
baseline's (larger is better). A baseline of less than 5 seconds runs on one thread afterwards, and the
faster counts: threads do not always pay. One of more than 50 seconds is not repeated; one that --limit
stops, at the end of a sweep, has "≥".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _rows import SHORT, Case, Tensors, alternated, begin, cases, change, heading, median, parser, row
from scipy.optimize import linear_sum_assignment

from rebasin_cli.matchers import wm
from rebasin_cli.permutations import permutation
from rebasin_cli.permutations.permutation import Permutations
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.atoms import atoms
from rebasin_cli.spec.spec import FittedSpec


def plain(fitted: FittedSpec, a: Tensors, b: Tensors, limit: float, seed: int) -> tuple[Permutations, bool]:
    """Algorithm 1 as a reader of the paper would write it; whether it came to its end within the limit."""
    began = time.perf_counter()
    parts = list(atoms(fitted))
    perms = permutation.identity(fitted.words)
    words, sweep, improved = sorted(perms), 0, True
    while improved and time.perf_counter() - began < limit:
        improved = False
        order = torch.randperm(len(words), generator=generator(seed, f"plain sweep {sweep}"))
        sweep += 1
        for word in (words[k] for k in order.tolist()):
            similarity = torch.zeros((fitted.words[word],) * 2, dtype=torch.float64)
            for part in parts:
                for axis in (d for d, here in enumerate(part.words) if here == word):
                    x, y = (part.view(model[part.tensor]) for model in (a, b))
                    for d, other in enumerate(part.words):
                        if other is not None and d != axis:
                            y = y.index_select(d, perms[other])
                    x, y = (z.movedim(axis, 0).reshape(len(similarity), -1) for z in (x, y))
                    similarity += x @ y.T
            rows, columns = map(torch.from_numpy, linear_sum_assignment(similarity.numpy(), maximize=True))
            gain = similarity[rows, columns].sum() - similarity[rows, perms[word]].sum()
            improved |= gain.item() > 1e-12
            perms[word] = columns
    return perms, not improved


def compare(case: Case, runs: int, limit: float) -> None:
    wide = [{name: tensor.double() for name, tensor in model.items()} for model in (case.a, case.b)]
    baseline = partial(plain, case.fitted, *wide, limit)
    tasks = {"plain": baseline, "wm": lambda seed: (wm.match(case.problem(seed)).permutations[0], True)}
    taken = alternated(tasks, runs)
    if median(seconds for seconds, _ in taken["plain"]) < SHORT:
        taken |= alternated({"plain on one thread": lambda seed: on_one_thread(baseline, seed)}, runs)
    times = {who: median(seconds for seconds, _ in found) for who, found in taken.items()}
    fast, best = times.pop("wm"), min(times, key=times.get)
    low, high = (median(case.reached(perms) for _, (perms, _) in taken[who]) for who in (best, "wm"))
    least = "" if all(ended for _, (_, ended) in taken[best]) else "≥ "
    row(
        *(case.name, len(taken[best]), f"{least}{times[best]:.3f}", f"{fast:.3f}"),
        *(f"{least}{times[best] / fast:.1f}", f"{low:.6g}", change(high, low)),
    )


def on_one_thread(task: Callable[[int], Any], seed: int) -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return task(seed)
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--limit", type=float, default=200, help="seconds for one run of the baseline")
    arguments = begin(found)
    heading("row", "plain runs", "plain, s", "wm, s", "ratio", "plain objective", "wm objective")
    for case in cases(arguments):
        compare(case, arguments.runs, arguments.limit)


if __name__ == "__main__":
    main()
