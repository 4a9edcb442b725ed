"""Any rotation that keeps the vector of ones: of streams that a LayerNorm takes the mean from."""

import torch

from ..group import CLOSE, Both, Rotations


def around_ones(n: int) -> torch.Tensor:
    """An orthonormal basis (n, n−1) of what is orthogonal to the vector of ones (Helmert's)."""
    rows = torch.arange(n, dtype=torch.float64)[:, None]
    columns = torch.arange(1, n, dtype=torch.float64)
    basis = torch.where(rows < columns, 1.0, torch.where(rows == columns, -columns, 0.0))
    return basis / (columns * (columns + 1)).sqrt()


class KeepingOnes(Rotations):
    told = "any rotation that keeps the vector of ones"

    def nearest(self, similarity: torch.Tensor) -> Both:
        """The nearest rotation of what is orthogonal to the ones."""
        n = similarity.shape[-1]
        basis = around_ones(n)
        inner, worth = super().nearest(basis.T @ similarity @ basis)
        return basis @ inner @ basis.T + 1 / n, worth + similarity.sum((-1, -2)) / n

    def drawn(self, n: int, rng: torch.Generator, *, balanced: bool = False) -> torch.Tensor:
        basis = around_ones(n)
        return basis @ super().drawn(n - 1, rng) @ basis.T + 1 / n

    def wrong(self, map_: torch.Tensor) -> str:
        moved = float((map_.sum(-1) - 1).abs().max()) > CLOSE
        return super().wrong(map_) or (
            "has a rotation that does not keep the vector of ones" if moved else ""
        )

    def learnt(self, n: int) -> tuple[int, ...]:
        return (n - 1, n - 1)

    def learned(self, numbers: torch.Tensor) -> Both:
        n = numbers.shape[-1] + 1
        basis = around_ones(n).to(numbers)
        turned = basis @ super().learned(numbers)[0] @ basis.T + 1 / n
        return turned, turned


GROUP = KeepingOnes()
