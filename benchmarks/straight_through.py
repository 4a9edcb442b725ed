"""The straight-through regime: consecutive solves on weights that move a little, warm against cold.

    python benchmarks/straight_through.py [--steps 100] [--rows NAME,…] [--pairs A:B …]

Every step adds Gaussian noise of a thousandth of its norm to every tensor of B, then solves each word once,
one after the other, from products anew: nothing can be kept where all weights move. In every step all three
solve the same matrices: scipy cold in float64, ours cold, ours warm from the last step's solution. Their
values are compared with scipy's every time. Printed are medians in milliseconds a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch
from _rows import Case, begin, cases, heading, median, parser, row, timed
from scipy.optimize import linear_sum_assignment

from rebasin_cli.matchers.descent.pair import Pair
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.symmetry import assignment, permutation

MOVE = 1e-3  # of a tensor's norm, a step
ROWS = "mlp 3x512,trained mlp512"
SOLVERS = ("scipy", "cold", "warm")


def step(pair: Pair, perms: dict[str, torch.Tensor], last: dict[str, assignment.Solution]) -> Counter:
    """Every word once, with all solvers: seconds of each and of the products, and the worst shortfall."""
    taken: Counter = Counter()
    for word in sorted(pair.words):
        seconds, similarity = timed(pair.matrix, word, perms)
        taken["products"] += seconds
        double = similarity.double().numpy()
        seconds, (units, best) = timed(lambda matrix: linear_sum_assignment(matrix, maximize=True), double)
        taken["scipy"] += seconds
        seconds, cold = timed(assignment.solve, similarity)
        taken["cold"] += seconds
        seconds, warm = timed(
            lambda *given: assignment.solve(given[0], start=given[1]), similarity, last.get(word)
        )
        taken["warm"] += seconds
        optimum = double[units, best].sum()
        for solution in (cold, warm):
            lack = (optimum - double[units, solution.perm.numpy()].sum()) / abs(optimum)
            taken["lack"] = max(taken["lack"], lack)
        taken["moved"] += np.mean(perms[word].numpy() != best) / len(pair.words)
        last[word], perms[word] = warm, warm.perm
    return taken


def moved(model: Mapping[str, torch.Tensor], rng: torch.Generator) -> None:
    for tensor in model.values():
        noise = torch.randn(tensor.shape, generator=rng)
        norm = torch.linalg.vector_norm(noise)
        tensor += MOVE * torch.linalg.vector_norm(tensor) / norm * noise


def measure(case: Case, steps: int) -> None:
    model = {name: tensor.clone() for name, tensor in case.b.items()}
    pair, rng = Pair(case.a, model, case.fitted), generator(0, "straight through")
    perms, last, taken = permutation.identity(pair.words), {}, []
    with pair.computing():
        step(pair, perms, last)  # where the first solve begins is not of this regime
        for _ in range(steps):
            moved(model, rng)
            taken.append(step(pair, perms, last))
    products = median(1e3 * each["products"] for each in taken)
    alone = {name: median(1e3 * each[name] for each in taken) for name in SOLVERS}
    whole = {name: median(1e3 * (each["products"] + each[name]) for each in taken) for name in SOLVERS}
    row(
        *(case.name, steps, f"{median(each['moved'] for each in taken):.2%}", f"{products:.1f}"),
        *(f"{alone[name]:.2f}" for name in SOLVERS),
        *(f"{whole[name]:.1f}" for name in SOLVERS),
        f"{max(each['lack'] for each in taken):.0e}",
    )


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--steps", type=int, default=100)
    arguments = begin(found, ROWS)
    heading(
        *("row", "steps", "units that move", "products, ms"),
        *(f"assignments: {name}, ms" for name in SOLVERS),
        *(f"both: {name}, ms" for name in SOLVERS),
        "shortfall",
    )
    for case in cases(arguments):
        measure(case, 5 if arguments.quick else arguments.steps)


if __name__ == "__main__":
    main()
