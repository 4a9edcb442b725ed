"""Duals of an optimal permutation, and what they tell: margins, and the first of all that are as good."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

# What rounding does to a reduced cost, relative to the largest entry; docs/decisions/0009 justifies it
TOLERANCE = 2.0**-46
BLOCK = 1 << 20  # entries that are looked at together


def blocks(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Slices of rows, and the rows themselves in float64."""
    step = max(1, BLOCK // max(1, matrix.shape[1]))
    for top in range(0, len(matrix), step):
        yield slice(top, top + step), matrix[top : top + step].astype(np.float64)


def largest(matrix: np.ndarray) -> float:
    """The largest magnitude; NaN where there is one."""
    return float(np.max([np.abs(block).max() for _, block in blocks(matrix)]))


def _tolerance(matrix: np.ndarray) -> float:
    return TOLERANCE * largest(matrix)


def duals_of(matrix: np.ndarray, perm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Duals of an optimal permutation: what another row would rather have becomes dearer.

    Prices are longest paths among columns; no cycle is positive, as the permutation is optimal.
    """
    n, slack = len(matrix), _tolerance(matrix) / 4
    columns = np.zeros(n)
    mine = matrix[np.arange(n), perm].astype(np.float64)
    for _ in range(n):
        rows = mine - columns[perm]
        wanted = [(block - rows[i, None]).max(axis=0) for i, block in blocks(matrix)]
        raised = np.maximum(columns, np.max(wanted, axis=0))
        if (raised <= columns + slack).all():
            break
        columns = raised
    return mine - columns[perm], columns


def margins_of(matrix: np.ndarray, perm: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """By how much each row prefers its own column to any other, at these prices."""
    others = []
    for i, block in blocks(matrix):
        block -= columns
        np.put_along_axis(block, perm[i, None], -np.inf, axis=1)
        others.append(block.max(axis=1))
    margins: np.ndarray = rows - np.concatenate(others)
    return margins


def first_of(matrix: np.ndarray, perm: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The lexicographically first of all permutations as good as this one.

    Each of them uses tight pairs only, whatever the optimal duals (complementary slackness), and differs
    from this one by alternating cycles of them. So only pairs within one strongly connected part count.
    """
    n, tolerance = len(matrix), _tolerance(matrix)
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    owner = np.argsort(perm).astype(np.int32)
    tight = np.concatenate([block - columns >= rows[i, None] - tolerance for i, block in blocks(matrix)])
    ends = np.cumsum([0, *tight.sum(axis=1)])
    heads = np.concatenate([owner[np.flatnonzero(row)] for row in tight])
    graph = csr_array((np.ones(len(heads)), heads, ends), (n, n))  # row → who has a column that it may have
    _, part = connected_components(graph, connection="strong")
    tight &= part[:, None] == part[owner]
    bits = [int.from_bytes(row.tobytes(), "little") for row in np.packbits(tight, axis=1, bitorder="little")]
    column_of: list[int] = perm.tolist()
    row_of: list[int] = owner.tolist()
    free = (1 << n) - 1  # columns of rows that are not settled yet
    for i in range(n):
        last = column_of[i]  # who gives up its column must in the end lead to one who takes this
        unseen = free & ~(1 << last)
        while wanted := bits[i] & unseen & ((1 << last) - 1):
            j = (wanted & -wanted).bit_length() - 1
            before = {j: -1}
            queue, unseen = [j], unseen & ~(1 << j)
            while queue and not bits[row_of[queue[-1]]] >> last & 1:
                column = queue.pop()
                reached = bits[row_of[column]] & unseen
                unseen &= ~reached
                while reached:
                    k = (reached & -reached).bit_length() - 1
                    reached &= reached - 1
                    before[k] = column
                    queue.append(k)
            if not queue:
                continue  # what was seen on the way leads nowhere either
            column, to = queue[-1], last
            while column >= 0:
                row = row_of[column]
                column_of[row], row_of[to] = to, row
                column, to = before[column], column
            column_of[i], row_of[j] = j, i
            break
        free &= ~(1 << column_of[i])
    first, rows = np.array(column_of, dtype=np.int64), np.arange(n)
    # Pairs may seem tight by rounding alone: what is worse by more than a sum's rounding is not as good
    better = math.fsum(matrix[rows, perm]) - math.fsum(matrix[rows, first])
    return perm if better > n * tolerance / 64 else first
