"""How far weight matching is from what its problem takes at least, and where its time goes.

    python benchmarks/limit.py [--rows NAME,…] [--runs 3] [--pairs a.safetensors:b.safetensors …]

The limit of a row: the products of one full sweep at the peak this machine reaches with float32 matrices of
2048 × 2048, and one cold assignment for every permutation, on wm's own last similarities, one after the
other. "multiple" is the time of wm over that; near copies, proven on a sample of the columns, can be below 1.
The rest is split into products, assignments, gathers (B's units in another order) and everything else.
"sweeps' products" are the multiplications done, in full sweeps.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from _rows import Case, begin, cases, heading, median, parser, row, timed

from rebasin_cli.matchers import MatchResult, wm
from rebasin_cli.matchers.descent.assignments import Assignments
from rebasin_cli.matchers.descent.pair import Pair
from rebasin_cli.symmetry import assignment

SIDE, TRIES = 2048, 20
PARTS = {
    "products": (Pair, "_add_product"),
    "assignments": (Assignments, "solved"),
    "gathers": (Pair, "_take"),
}


def peak() -> float:
    """Floating-point operations a second of the fastest of several float32 products."""
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    return 2 * SIDE**3 / min(timed(torch.mm, a, b)[0] for _ in range(TRIES))


@contextlib.contextmanager
def watched() -> Iterator[Counter]:
    """Seconds of each of PARTS while the block runs, and "done": operations in products.

    None of them calls another, so they add up. Assignments are taken together, as threads share them.
    """
    taken: Counter = Counter()

    def watching(name: str, function: Callable) -> Callable:
        def run(self, *args):
            args = [list(arg) if isinstance(arg, Iterator) else arg for arg in args]  # made before the clock
            seconds, result = timed(function, self, *args)
            taken[name] += seconds
            if name == "products":
                _, a, b, *_ = args
                taken["done"] += 2 * a.numel() * len(b)
            return result

        return run

    with contextlib.ExitStack() as stack:
        for name, (owner, method) in PARTS.items():
            stack.enter_context(mock.patch.object(owner, method, watching(name, getattr(owner, method))))
        yield taken


def measured(case: Case, seed: int) -> tuple[Counter, MatchResult]:
    with watched() as taken:
        seconds, result = timed(wm.match, case.problem(seed))
    taken["whole"] = seconds
    return taken, result


def bound(case: Case, result: MatchResult, rate: float, runs: int) -> tuple[float, float, float]:
    """Operations of one full sweep, their seconds at the peak, seconds of one cold assignment a word."""
    pair, cold = Pair(case.a, case.b, case.fitted), 0.0
    carried = {word: pair.single[word] + pair.double[word] for word in pair.words}
    work = sum(2 * size**2 * pair.columns(carried[word], word) for word, size in pair.words.items())
    for word in pair.words:
        with pair.computing():
            similarity = pair.matrix(word, result.permutations[0])
        cold += median(timed(assignment.solve, similarity)[0] for _ in range(runs))
    return work, work / rate, cold


def report(case: Case, rate: float, runs: int) -> None:
    found = [measured(case, seed) for seed in range(runs)]
    split = {name: median(taken[name] for taken, _ in found) for name in [*PARTS, "done", "whole"]}
    _, result = found[0]
    work, products, cold = bound(case, result, rate, runs)
    shares = [split[name] / split["whole"] for name in PARTS]
    row(
        case.name,
        f"{split['whole']:.3f}",
        f"{products:.3f} + {cold:.3f}",
        f"{split['whole'] / (products + cold):.1f}",
        *(f"{share:.0%}" for share in [*shares, 1 - sum(shares)]),
        f"{split['done'] / work:.1f}",
        f"{median(result.solves for _, result in found) / len(case.fitted.words):.1f}",
    )


def main() -> None:
    arguments = begin(parser(__doc__))
    rate = peak()
    print(f"peak of float32 products of {SIDE}: {rate / 1e9:.0f} GFLOP/s\n")
    heading(
        *("row", "wm, s", "limit: products + assignments, s", "multiple"),
        *(*PARTS, "rest", "sweeps' products", "solves a word"),
    )
    for case in cases(arguments):
        report(case, rate, arguments.runs)


if __name__ == "__main__":
    main()
