"""The global minima of a student, drawn evenly, and how two of them are matched.

At a minimum every row has one entry that is not 0, its type; the entries of a type add up to 1.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ...symmetry import assignment
from . import systems


def drawn(count: int, students: int, units: int, generator: torch.Generator, *, inputs: int = 0) -> Tensor:
    """`count` minima of `students` rows, evenly: float64 (count, m, d); d is k where it is 0.

    Each type has a row and m - k more are of types drawn evenly; the entries of a type are uniform on its
    simplex; rows are in any order. Zhan, Li and Wu 2025, appendix B. Raises UsageError for m < k.
    """
    if students < units:
        raise UsageError(f"{students} units cannot compute what {units} do", hint="m is k at least")
    more = torch.randint(units, (count, students - units), generator=generator)
    types = torch.cat([torch.arange(units).expand(count, units), more], 1)
    sizes = torch.empty(count, students, dtype=torch.float64).exponential_(generator=generator)
    sums = torch.zeros(count, units, dtype=torch.float64).scatter_add_(1, types, sizes)
    sizes = sizes / sums.gather(1, types)
    order = torch.rand(count, students, generator=generator).argsort(1)
    types, sizes = types.gather(1, order), sizes.gather(1, order)
    made = torch.zeros(count, students, inputs or units, dtype=torch.float64)
    return made.scatter_(2, types[..., None], sizes[..., None])


def types_of(student: Tensor) -> Tensor:
    """The largest coordinate of every row."""
    return student.argmax(-1)


def counts_of(students: Tensor, units: int) -> Tensor:
    """How many rows of each type, (..., k)."""
    types = types_of(students)
    counted = torch.zeros(*types.shape[:-1], units, dtype=torch.int64)
    return counted.scatter_add_(-1, types, torch.ones_like(types))


def overlap(one: Tensor, other: Tensor, units: int) -> Tensor:
    """The share of rows that have a partner of their type: Σ min(u_i, v_i) / m."""
    common = torch.minimum(counts_of(one, units), counts_of(other, units)).sum(-1)
    return common / one.shape[-2]


def expected_overlap(students: int, units: int) -> float:
    """The mean overlap of two minima that are drawn evenly, exactly for every finite m.

    (k/m)(1 + Σ_j P(Bin(m - k, 1/k) ≥ j)²): both counts are j or more at once, and they are independent.
    """
    from scipy.stats import binom

    rest = students - units
    tails = binom.sf(np.arange(rest), rest, 1 / units)  # P(≥ 1), P(≥ 2), …
    return units / students * (1 + float((tails**2).sum()))


def limit_overlap(ratio: float) -> float:
    """The same for m = ratio·k and k without end: counts are 1 + Poisson(ratio - 1)."""
    from scipy.stats import poisson

    tails = poisson.sf(np.arange(int(ratio + 20 * math.sqrt(ratio) + 50)), ratio - 1)
    return (1 + float((tails**2).sum())) / ratio


def by_type(one: Tensor, other: Tensor, *, sort: bool = True) -> Tensor:
    """Algorithm 1: rows of a type are paired by falling norm, what is left over as it comes.

    perm[i] is the row of `other` that stands in for row i of `one`. Without `sort` rows of a type are paired
    in their order. Zhan, Li and Wu 2025, Algorithm 1.
    """
    (codes, at), (others, there) = _ranked(one, sort), _ranked(other, sort)
    _, first, second = np.intersect1d(codes, others, assume_unique=True, return_indices=True)
    perm = np.full(len(one), -1)
    perm[at[first]] = there[second]
    left = np.setdiff1d(np.arange(len(one)), there[second], assume_unique=True)
    perm[perm < 0] = left
    return torch.from_numpy(perm)


def _ranked(student: Tensor, sort: bool) -> tuple[np.ndarray, np.ndarray]:
    """A number for (type, rank within it) of every row, and the rows in that order."""
    types = types_of(student).numpy()
    norms = -student.norm(dim=-1).numpy() if sort else np.zeros(len(types))
    order = np.lexsort((np.arange(len(types)), norms, types))
    kinds = types[order]
    ranks = np.arange(len(kinds)) - np.searchsorted(kinds, kinds)
    return kinds * len(kinds) + ranks, order


def by_weights(one: Tensor, other: Tensor) -> Tensor:
    """The permutation with the largest inner product of rows: one linear assignment."""
    return assignment.solve(one @ other.T).perm


def by_activations(one: Tensor, other: Tensor) -> Tensor:
    """The permutation with the largest expected products of activations: one linear assignment.

    Units of two types are active together half of the time, so types may mix where weights' may not.
    """
    return assignment.solve(systems.products(one, other)).perm


METHODS = {
    "naive": lambda one, other: torch.arange(len(one)),
    "Algorithm 1": by_type,
    "unsorted": lambda one, other: by_type(one, other, sort=False),
    "LAP on weights": by_weights,
    "LAP on activations": by_activations,
}


def matched(ones: Tensor, others: Tensor, method: str) -> Tensor:
    """`others` (pairs, m, d) with their rows in the order that a method gives."""
    return torch.stack([b[METHODS[method](a, b)] for a, b in zip(ones, others, strict=True)])
