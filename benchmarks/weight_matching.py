"""Weight matching against Algorithm 1 written plainly, in one run: time ratio and objective.

    python benchmarks/weight_matching.py [--rows NAME,…] [--runs 3] [--pairs a.safetensors:b.safetensors …]

The baseline solves every layer in random order in each sweep, with scipy in float64 and full products, and
stops when no layer improves by more than 1e-12 (Ainsworth et al. 2022, Algorithm 1). wm runs as it does by
default. Runs alternate with seeds 0, 1, …; printed are medians, the ratio of the medians (larger is faster)
and wm's objective against the baseline's (larger is better). A baseline of more than 100 seconds runs once,
and one that --limit stops at the end of a sweep has "≥".
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch
from _rows import Case, Tensors, alternated, begin, cases, heading, median, parser, row
from scipy.optimize import linear_sum_assignment

from rebasin_cli.matchers import wm
from rebasin_cli.permutation import Permutations
from rebasin_cli.randomness import generator
from rebasin_cli.spec.atoms import Atom, atoms
from rebasin_cli.spec.spec import FittedSpec


def plain(fitted: FittedSpec, a: Tensors, b: Tensors, limit: float, seed: int) -> tuple[Permutations, bool]:
    """Algorithm 1 as a reader of the paper would write it; whether it came to its end within the limit."""
    began = time.perf_counter()
    parts = list(atoms(fitted))
    view = {part: (_numpy(part, a), _numpy(part, b)) for part in parts}
    perms = {word: np.arange(size) for word, size in fitted.words.items()}
    words, sweep, improved = sorted(perms), 0, True
    while improved and time.perf_counter() - began < limit:
        improved = False
        order = torch.randperm(len(words), generator=generator(seed, f"plain sweep {sweep}"))
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
    return {word: torch.from_numpy(perm) for word, perm in perms.items()}, not improved


def _numpy(part: Atom, tensors: Tensors) -> np.ndarray:
    return part.view(tensors[part.tensor]).numpy()


def compare(case: Case, runs: int, limit: float) -> None:
    wide = [{name: tensor.double() for name, tensor in model.items()} for model in (case.a, case.b)]
    tasks = {
        "plain": partial(plain, case.fitted, *wide, limit),
        "wm": lambda seed: (wm.match(case.problem(seed)).permutations[0], True),
    }
    taken = alternated(tasks, runs)
    slow, fast = (median(seconds for seconds, _ in taken[who]) for who in tasks)
    low, high = (median(case.reached(perms) for _, (perms, _) in taken[who]) for who in tasks)
    least = "" if all(ended for _, (_, ended) in taken["plain"]) else "≥ "
    times, gain = len(taken["plain"]), high / low - 1
    gain = "equal" if abs(gain) < 1e-9 else f"{gain:+.4%}"
    row(case.name, times, f"{least}{slow:.3f}", f"{fast:.3f}", f"{least}{slow / fast:.1f}", f"{low:.6g}", gain)


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--limit", type=float, default=300, help="seconds for one run of the baseline")
    arguments = begin(found)
    heading("row", "plain runs", "plain, s", "wm, s", "ratio", "plain objective", "wm objective")
    for case in cases(arguments):
        compare(case, arguments.runs, arguments.limit)


if __name__ == "__main__":
    main()
