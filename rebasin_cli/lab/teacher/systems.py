"""The loss of a student and its gradient, exactly.

Of Gaussian x, E relu(a·x) relu(b·x) = ‖a‖‖b‖ κ(cos), κ(c) = (√(1 - c²) + (π - arccos c) c) / 2π (Cho and Saul
2009). On the sphere of radius 1 all of it is divided by d.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def kernel(cosine: Tensor) -> Tensor:
    """κ: ½ at 1, 1/2π at 0, 0 at -1."""
    cosine = cosine.clamp(-1, 1)
    return ((1 - cosine * cosine).sqrt() + (math.pi - cosine.arccos()) * cosine) / (2 * math.pi)


def products(a: Tensor, b: Tensor) -> Tensor:
    """E relu(a_i·x) relu(b_j·x) for every pair of rows: (..., m, n)."""
    lengths = a.norm(dim=-1)[..., :, None] * b.norm(dim=-1)[..., None, :]
    values: Tensor = lengths * kernel(_cosines(a @ b.mT, lengths))
    return values


def teacher(units: int, inputs: int) -> Tensor:
    """(k, d): the first k coordinates."""
    return torch.eye(units, inputs, dtype=torch.float64)


def loss(students: Tensor, units: int) -> Tensor:
    """½ E (student - teacher)², for every student (...,)."""
    aim = teacher(units, students.shape[-1])
    own, both = products(students, students), products(students, aim)
    return (own.sum((-1, -2)) - 2 * both.sum((-1, -2)) + products(aim, aim).sum()) / 2


def gradient(students: Tensor, units: int) -> Tensor:
    """The gradient of `loss`, of its shape; a row of zeros has no direction, and none is made up for it."""
    return pull(students, students) - pull(students, teacher(units, students.shape[-1]))


def pull(a: Tensor, b: Tensor) -> Tensor:
    """Σ_j (‖b_j‖ sin θ_ij a_i/‖a_i‖ + (π - θ_ij) b_j) / 2π for every row of a."""
    long, short = a.norm(dim=-1), b.norm(dim=-1)
    cosine = _cosines(a @ b.mT, long[..., :, None] * short[..., None, :]).clamp(-1, 1)
    along = ((1 - cosine * cosine).sqrt() * short[..., None, :]).sum(-1, keepdim=True)
    unit = torch.where(long[..., None] > 0, a / long.clamp_min(1e-300)[..., None], 0.0)
    slope: Tensor = (along * unit + (math.pi - cosine.arccos()) @ b) / (2 * math.pi)
    return slope


def _cosines(inner: Tensor, lengths: Tensor) -> Tensor:
    return torch.where(lengths > 0, inner / lengths.clamp_min(1e-300), 0.0)


def outputs(students: Tensor, inputs: Tensor) -> Tensor:
    """What students compute of inputs (n, d): (..., n)."""
    return (students @ inputs.T).relu().sum(-2)


def barrier(one: Tensor, other: Tensor, units: int, points: int = 11) -> Tensor:
    """The height of the straight path above its chord, for every pair of students (...,).

    On an even grid, both ends included; where both ends have no loss the two definitions are the same.
    """
    first, last, highest = loss(one, units), loss(other, units), torch.zeros(one.shape[:-2]).double()
    for t in torch.linspace(0, 1, points, dtype=torch.float64)[1:-1]:
        above = loss(torch.lerp(one, other, t), units) - torch.lerp(first, last, t)
        highest = torch.maximum(highest, above)
    return highest


def pq_index(values: Tensor, p: float, q: float) -> Tensor:
    """How sparse the last dimension is: 1 - n^(1/q - 1/p) ‖w‖_p / ‖w‖_q; 0 where all entries are equal.

    Zhan, Li and Wu 2025, Definition 7.
    """
    count = values.shape[-1]
    low = values.abs().pow(p).sum(-1).pow(1 / p)
    high = values.abs().pow(q).sum(-1).pow(1 / q)
    score: Tensor = 1 - count ** (1 / q - 1 / p) * low / high
    return score
