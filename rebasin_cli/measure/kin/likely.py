"""How likely each unit of B stands for each of A, by what they read and write where no other units are.

A faint copy has few units that any matching finds. Where its order is unsure, a doubly stochastic matrix
says more than one order: of f·n units that are found by chance right, orders see the share f of what copies
have in common, such matrices nearly √f. Where it is sure, both are the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ...matchers.descent.soft import balanced
from ...spec.notation import Fixed, Word
from ...spec.spec import FittedSpec
from .effect import DIRECTION

RIDGE = 0.2  # of the middle direction's square: 0.1 to 0.3 find as much (benchmarks/results.md)
ROUNDS = 20  # of Sinkhorn


def word_alone(fitted: FittedSpec, name: str) -> str | None:
    """The word of a tensor whose other axes all stay; None where there are several, or a starred one."""
    axes = fitted.tensors[name]
    words = [axis.name for axis in axes if isinstance(axis, Word) and not axis.each]
    others = [axis for axis in axes if isinstance(axis, Fixed)]
    return words[0] if len(words) == 1 and len(others) == len(axes) - 1 > 0 else None


def units(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], fitted: FittedSpec, words: Collection[str]
) -> dict[str, Tensor]:
    """Of each word a doubly stochastic matrix, A's units × B's (n, n), float64.

    By all tensors of a word alone, their directions made equally large in both at once, as far as `RIDGE`
    allows: what strangers learn alike is in a few large ones. Of n strangers the likeliest is by √(2 log n)
    standard deviations more alike than the mean; that is how much likelier a unit is by one of them, so that
    units are told that can just be told.
    """
    found = {}
    for word in words:
        names = [name for name in a if name in fitted.tensors and word_alone(fitted, name) == word]
        x, y = (torch.cat([_rows(m[name], fitted, name) for name in names], 1) for m in (a, b))
        alike = _alike(x, y)
        alike = alike - alike.mean(0)
        alike = alike - alike.mean(1, keepdim=True)
        sharp = math.sqrt(2 * math.log(len(alike))) / (float(alike.square().mean().sqrt()) or 1.0)
        found[word] = balanced(alike * sharp, ROUNDS)
    return found


def _rows(tensor: Tensor, fitted: FittedSpec, name: str) -> Tensor:
    """What each unit has (n, columns that are not 0), less the mean over units, of mean square 1."""
    dim = next(k for k, axis in enumerate(fitted.tensors[name]) if isinstance(axis, Word))
    rows = tensor.movedim(dim, 0).flatten(1).double()
    rows = rows - rows.mean(0)
    size = float(rows.norm())
    return rows * math.sqrt(max(1, int(rows.any(0).sum())) * len(rows)) / size if size else rows


def _alike(x: Tensor, y: Tensor) -> Tensor:
    """x (xᵀx + yᵀy + ridge)⁻¹ yᵀ, by the smaller side."""
    squares = torch.linalg.svdvals(x).square()
    ridge = RIDGE * float(squares[squares > DIRECTION**2 * squares[0]].median()) if squares[0] else 1.0
    both = torch.cat([x, y])
    n, columns = both.shape
    if columns < n:
        gram = both.T @ both
        gram.diagonal().add_(ridge)
        return x @ torch.cholesky_solve(y.T, torch.linalg.cholesky(gram))
    gram = both @ both.T
    gram.diagonal().add_(ridge)
    # The same but for a factor: both (bothᵀboth + ridge)⁻¹ bothᵀ is 1 − ridge (both bothᵀ + ridge)⁻¹
    return -torch.cholesky_inverse(torch.linalg.cholesky(gram))[: len(x), len(x) :]
