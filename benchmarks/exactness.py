"""Whether every assignment that weight matching solves is optimal, and whether threads change the answer.

    python benchmarks/exactness.py [--rows NAME,…] [--pairs a.safetensors:b.safetensors …]

Each matrix is given to scipy in float64 as well, for up to --scipy seconds a row; "shortfall" is the largest
share of the optimum that our assignment lacks. "gap" is the largest that its own duals leave open, again
against the optimum, for all matrices. "threads": permutations with one thread and with two are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import torch
from _rows import Case, begin, cases, heading, parser, row, timed
from scipy.optimize import linear_sum_assignment

from rebasin_cli.matchers import wm
from rebasin_cli.symmetry import assignment

SOLVE = assignment.solve


@dataclass
class Checks:
    """What came out of the assignments so far."""

    limit: float  # seconds that scipy may take
    spent: float = 0.0
    checked: int = 0
    shortfalls: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def solve(self, similarity: torch.Tensor, *, start: assignment.Solution | None = None):
        """As the library's, and looked at by others."""
        solution, matrix = SOLVE(similarity, start=start), similarity.double().numpy()
        units, perm = np.arange(len(matrix)), solution.perm.numpy()
        value = matrix[units, perm].sum()
        if self.spent < self.limit:
            seconds, (_, best) = timed(lambda: linear_sum_assignment(matrix, maximize=True))
            self.spent += seconds
            self.checked += 1
            optimum = matrix[units, best].sum()
            self.shortfalls.append((optimum - value) / max(abs(optimum), np.finfo(float).tiny))
        rows, columns = solution.rows.numpy(), solution.columns.numpy()
        violated = max(0.0, (matrix - rows[:, None] - columns).max())
        limit = rows.sum() + columns.sum() + len(matrix) * violated
        self.gaps.append((limit - value) / max(abs(limit), np.finfo(float).tiny))
        return solution


def check(case: Case, seconds: float) -> None:
    checks, threads = Checks(seconds), torch.get_num_threads()
    with mock.patch.object(assignment, "solve", checks.solve):
        found = [wm.match(case.problem())]
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(wm.match(case.problem()))
    torch.set_num_threads(threads)
    first, *others = (result.permutations[0] for result in found)
    same = all(torch.equal(perms[word], first[word]) for perms in others for word in first)
    row(
        case.name,
        len(checks.gaps),
        checks.checked,
        f"{max(checks.shortfalls):.1e}",
        f"{max(checks.gaps):.1e}",
        "same" if same else "DIFFERENT",
    )


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--scipy", type=float, default=60, metavar="SECONDS", help="for scipy, a row (60)")
    arguments = begin(found)
    heading("row", "assignments", "checked by scipy", "shortfall", "gap", "1 and 2 threads")
    for case in cases(arguments):
        check(case, arguments.scipy)


if __name__ == "__main__":
    main()
