"""One linear assignment: which unit of the model stands in for which unit of the reference.

The only module that knows who solves it: the compiled `_lap`, which is made for this, or scipy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from types import ModuleType

import numpy as np
import torch

from ..errors import CheckpointError, UsageError
from .duals import blocks, duals_of, first_of, largest, margins_of

_lap: ModuleType | None
try:
    from . import _lap
except ImportError:  # built without a C compiler
    _lap = None
if os.environ.get("REBASIN_SOLVER") == "scipy":
    _lap = None

LARGEST = 1e300  # sums of entries beyond it overflow


Numbers = np.ndarray | torch.Tensor
Duals = np.ndarray | Sequence[torch.Tensor]  # of rows, of columns, and margins


class Solution:
    """A best permutation with its duals: similarity[i, j] <= rows[i] + columns[j], equal where assigned.

    That inequality is the proof of optimality, and `columns` lets a similar matrix be solved faster.
    It holds up to rounding. `margins` are by how much it is slack where a row is tried with any column but
    its own, at least: infinite where there is no other, of no meaning beside a matrix that is not square.
    """

    __slots__ = ("_duals", "_perm")

    def __init__(self, perm: Numbers, duals: Duals):
        self._perm, self._duals = perm, duals  # tensors of them are made when asked for: that takes time

    @property
    def perm(self) -> torch.Tensor:
        """(m,) int64: column of a row; -1 for rows left over where there are more than columns."""
        return torch.as_tensor(self._perm)

    @property
    def rows(self) -> torch.Tensor:
        """(m,) float64."""
        return torch.as_tensor(self._duals[0])

    @property
    def columns(self) -> torch.Tensor:
        """(n,) float64."""
        return torch.as_tensor(self._duals[1])

    @property
    def margins(self) -> torch.Tensor:
        """(m,) float64."""
        return torch.as_tensor(self._duals[2])

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n), of the matrix that was solved."""
        return len(self._perm), len(self._duals[1])

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """What another solve begins with, of a square matrix: its duals (3, n), and `perm`."""
        duals = self._duals
        if not isinstance(duals, np.ndarray):
            duals = np.stack([np.asarray(each) for each in duals])
        return duals, np.asarray(self._perm)

    def settled(self) -> Solution:
        """The solution of the same square matrix with its columns in the order of `perm`: everybody stays."""
        (rows, columns, margins), perm = self.start()
        return Solution(np.arange(len(perm)), np.stack([rows, columns[perm], margins]))


def compiled() -> bool:
    """Whether the compiled solver is in use, and not scipy's."""
    return _lap is not None


def solve(similarity: torch.Tensor, *, start: Solution | None = None) -> Solution:
    """The permutation that maximises Σ_i similarity[i, perm[i]], exactly, and its duals.

    `similarity` is (m, n), reference unit × model unit; float32 and float64 are taken as they are, half
    types as float32, integers as float64. Each unit of the shorter side gets a partner. Prices of columns
    are raised until every row can have a column that is best for it; `start`, the solution of a similar
    matrix, begins with its prices. Of equally good permutations the lexicographically first is returned,
    so it depends neither on the start nor on the solver.

    Raises CheckpointError for NaN, infinities and magnitudes above 1e300, UsageError for a start of
    another size.

    Jonker & Volgenant 1987, "A shortest augmenting path algorithm for dense and sparse linear assignment
    problems"; the start is Algorithm 3 of Ito, Yamada and Kumagai 2025 (ICML, PMLR 267), from prices that
    lie farther within those that are optimal.
    """
    return _solved(*_ready(similarity, start))


def solve_all(
    similarities: Iterable[torch.Tensor],
    starts: Sequence[Solution | None] | None = None,
    *,
    pool: Executor | None = None,
) -> list[Solution]:
    """`solve` for each; the solutions are the same as one by one.

    Without a pool all similarities are made first, then the solver has the caches for itself. On the threads
    of `pool` each is solved while the next are made. Raises as `solve`.
    """
    if starts is None:
        ready = (_ready(similarity, None) for similarity in similarities)
    else:
        ready = (_ready(*pair) for pair in zip(similarities, starts, strict=True))
    if pool is None:
        return [_solved(*each) for each in list(ready)]
    waiting = [pool.submit(_solved, *each) for each in ready]
    return [future.result() for future in waiting]


def total(similarity: torch.Tensor, perm: torch.Tensor) -> float:
    """Σ_i similarity[i, perm[i]] in float64, over the rows that have a partner."""
    perm = perm.to(similarity.device)
    if len(perm) > similarity.shape[1]:
        similarity, perm = similarity[perm >= 0], perm[perm >= 0]
    return similarity.gather(1, perm[:, None]).sum(dtype=torch.float64).item()


def certificate(similarity: torch.Tensor, solution: Solution) -> float:
    """By how much any assignment can be better than this one, at most: 0, up to rounding, proves it optimal.

    Every assignment is worth at most the sum of all duals, so far as they are feasible; where they are not,
    each pair is granted the largest violation. In float64, one pass over the matrix. Negative by rounding
    only.
    """
    matrix, (m, n) = _matrix(similarity), similarity.shape
    rows, columns = solution.rows.numpy(), solution.columns.numpy()
    worst = max((float((b - rows[i, None] - columns).max()) for i, b in blocks(matrix) if b.size), default=0)
    if m != n:  # who may stay alone must not be paid for it
        worst = max(worst, -float((columns if m < n else rows).min(initial=0)))
    gap = math.fsum(rows) + math.fsum(columns) - total(similarity, solution.perm)
    return gap + max(m, n) * max(worst, 0.0)


def _matrix(similarity: torch.Tensor) -> np.ndarray:
    """In memory, of a type that is solved as it is, rows contiguous."""
    if similarity.requires_grad or not similarity.is_cpu:
        similarity = similarity.detach().cpu()
    if similarity.dtype is not torch.float32 and similarity.dtype is not torch.float64:
        similarity = similarity.to(torch.float32 if similarity.is_floating_point() else torch.float64)
    matrix = similarity.numpy()
    return matrix if matrix.strides[1] == matrix.itemsize else matrix.copy()


def _ready(similarity: torch.Tensor, start: Solution | None) -> tuple[np.ndarray, ...]:
    """The matrix (m, n), and the start where it is square. Raises UsageError for one of another size."""
    matrix = _matrix(similarity)
    if start is None:
        return (matrix,)
    (m, n), (rows, columns) = matrix.shape, start.shape
    if (rows, columns) != (m, n):
        found = f"{rows} × {columns}"
        raise UsageError(f"the similarity is {m} × {n}, but the solution to start from is of {found}")
    return (matrix, *start.start()) if m == n else (matrix,)


def _solved(matrix: np.ndarray, *start: np.ndarray) -> Solution:
    """Solution of a matrix (m, n); one that is not square is solved without its start."""
    m, n = matrix.shape
    if m == n:
        return _square(matrix, *start)
    # Rows and columns of zeros stand for nobody. All of them cost the same, which is where the scale of the
    # other side's duals is set to 0: nobody pays for what is left over.
    size = max(m, n)
    whole = _square(np.pad(matrix, ((0, size - m), (0, size - n))))
    shift = whole.rows[m] if m < n else -whole.columns[n]
    perm = torch.where(whole.perm < n, whole.perm, -1)
    return Solution(perm[:m], (whole.rows[:m] - shift, whole.columns[:n] + shift, whole.margins[:m]))


def _square(matrix: np.ndarray, *start: np.ndarray) -> Solution:
    """Solution of a square matrix, from duals and columns of rows. Raises CheckpointError."""
    n = len(matrix)
    duals, perm, state = np.empty((3, n)), np.empty(n, dtype=np.int64), "unsure"
    if not n:
        state = "unique"
    elif _lap is not None:
        state = _lap.solve(matrix, duals, perm, *start)
    elif not largest(matrix) <= LARGEST:
        state = "not finite"
    if state == "not finite":
        raise CheckpointError(
            "a similarity matrix holds NaN or infinite values", hint="Check both models' weights"
        )
    if state == "unsure":
        from scipy.optimize import linear_sum_assignment  # seldom needed, and half a second to import

        perm[:] = linear_sum_assignment(matrix, maximize=True)[1]
        duals[:2] = duals_of(matrix, perm)
        duals[2] = margins_of(matrix, perm, *duals[:2])
    if state != "unique":
        perm = first_of(matrix, perm, *duals[:2])
    return Solution(perm, duals)
