"""How far mixtures go towards their corners: the objective on the way, where it is largest, when to stop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from numpy.polynomial import Polynomial


def on_the_way(atoms: Iterable[Sequence[Sequence[torch.Tensor]]]) -> Polynomial:
    """Σ over pairs of inner products over the share α of the corners, exactly: of degree 4 for matrices.

    Every atom has for each model its k + 1 terms: under α it is Σ over e of (1−α)^(k−e) · α^e times the e-th.
    ⟨Σ_i Y_i, Σ_j Y_j⟩ − Σ_i ⟨Y_i, Y_i⟩ is twice the sum over pairs.
    """
    total = Polynomial([0.0])
    for terms in atoms:
        axes = len(terms[0]) - 1
        sums = [sum(parts) for parts in zip(*terms, strict=True)]
        for e in range(axes + 1):
            for f in range(e, axes + 1):
                value = _inner(sums[e], sums[f]) - math.fsum(_inner(own[e], own[f]) for own in terms)
                rest = 2 * axes - e - f
                shape = Polynomial([1.0, -1.0]) ** rest * Polynomial([0.0, 1.0]) ** (e + f)
                total += shape * (value / 2 if e == f else value)
    return total


def best_share(line: Polynomial) -> float:
    """Where in 0–1 a polynomial is largest; of equals the least."""
    roots = (complex(root) for root in line.deriv().roots())
    inside = sorted(root.real for root in roots if abs(root.imag) < 1e-9 and 0 < root.real < 1)
    return max([0.0, *inside, 1.0], key=lambda share: float(line(share)))


def settled(objectives: Sequence[float], steps: Sequence[float], little: float) -> bool:
    """Whether two steps gained no more than a little, or one nothing.

    Two, since after a whole step often comes a short one. `objectives` has that before the first step, too.
    """
    if not steps:
        return False
    gained = objectives[-1] - objectives[max(0, len(steps) - 2)]
    return steps[-1] == 0 or (len(steps) > 1 and gained <= little)


def limit_of(norms: Sequence[float]) -> float:
    """Σ over pairs ‖θ_i‖·‖θ_j‖: no objective is larger."""
    return (math.fsum(norms) ** 2 - math.fsum(norm**2 for norm in norms)) / 2


def _inner(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a * b).sum().item()
