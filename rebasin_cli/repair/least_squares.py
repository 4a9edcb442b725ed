"""Ridge least squares from sums over rows, in float64: how a weight must change so that its errors shrink."""

from __future__ import annotations

import torch
from torch import Tensor

from ..runtime.ranks import Ranks

SLAB = 1 << 20  # numbers that are multiplied at once, in float64
SINGULAR = 1e-12  # of the largest eigenvalue: what is less is taken for 0


class Sums:
    """ZᵀZ (groups, d, d) and ZᵀR (groups, d, outputs), rows after rows: memory does not grow with samples.

    With a `constant`, Z has a last column of ones.
    """

    def __init__(self, *, constant: bool):
        self.constant, self.count = constant, 0
        self.gram = self.cross = torch.zeros(())

    def add(self, z: Tensor, r: Tensor) -> None:
        """Inputs (groups, rows, inputs) and what is missing at their outputs (groups, rows, outputs)."""
        width = z.shape[-1] + self.constant
        if not self.count:
            self.gram = torch.zeros(len(z), width, width, dtype=torch.float64, device=z.device)
            self.cross = torch.zeros(len(z), width, r.shape[-1], dtype=torch.float64, device=z.device)
        step = max(1, SLAB // (len(z) * width))
        for rows, missing in zip(z.split(step, 1), r.split(step, 1), strict=True):
            rows, missing = rows.double(), missing.double()
            if self.constant:
                rows = torch.cat([rows, rows.new_ones(*rows.shape[:2], 1)], -1)
            self.gram.baddbmm_(rows.mT, rows)
            self.cross.baddbmm_(rows.mT, missing)
        self.count += z.shape[1]

    def join(self, ranks: Ranks, device: str | torch.device) -> None:
        """The sums of all ranks, on each, on its `device`."""
        if ranks.size == 1:
            return
        counts, *shapes = zip(*ranks.all((self.count, self.gram.shape, self.cross.shape)), strict=True)
        if not self.count:  # it had no batch
            made = (torch.zeros(max(its, key=len), dtype=torch.float64, device=device) for its in shapes)
            self.gram, self.cross = made
        self.count, self.gram, self.cross = sum(counts), ranks.sum(self.gram), ranks.sum(self.cross)

    def finite(self) -> bool:
        return bool(self.gram.isfinite().all() and self.cross.isfinite().all())

    @property
    def dead(self) -> int:
        """Inputs that are 0 in every row: their weights stay as they are."""
        return int((self.gram.diagonal(dim1=-2, dim2=-1) == 0).sum())


def change(sums: Sums, ridge: float) -> Tensor:
    """(groups, d, outputs): (ZᵀZ + ridge · mean of its diagonal · I)⁻¹ ZᵀR, group by group.

    With ridge 0 it is the smallest change of those that are best. Where all inputs are 0, nothing changes.
    """
    damped = sums.gram.clone()
    diagonal = damped.diagonal(dim1=-2, dim2=-1)  # a view
    diagonal += ridge * diagonal.mean(-1, keepdim=True)
    factor, info = torch.linalg.cholesky_ex(damped)
    found = torch.cholesky_solve(sums.cross, factor)
    for group in (info != 0).nonzero().flatten().tolist() if ridge else range(len(damped)):
        found[group] = _smallest(damped[group], sums.cross[group])
    return found


def _smallest(gram: Tensor, cross: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(gram)
    kept = values > SINGULAR * values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    inverse = torch.where(kept, 1 / torch.where(kept, values, 1.0), 0.0)
    solved: Tensor = vectors @ (inverse[:, None] * (vectors.mT @ cross))
    return solved
