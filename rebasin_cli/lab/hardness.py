"""Why three layers are hard: the quadratic assignment problem is one of weight matching.

For matrices C and D, let A = C + λI and B = D - λI. For large λ the P and Q that minimise ⟨P A Qᵀ, B⟩ are
equal, and that P solves the quadratic assignment problem of C and D, which is NP-hard. Here every pair (P,
Q) is tried for drawn C and D: at the λ of the proof, and at the smallest one that works.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from .engine.bench import Bench
from .engine.claims import Line, Outcome, Panel, Table, exact, share

PAPER = "Git Re-Basin Lemma 1 and A.8"
FASTER = "fewer draws: every one tries all pairs of permutations"

TRUE = (1.0, 1.0)
STEPS = 16  # of the bisection for the smallest λ


def orders(size: int) -> Tensor:
    """All permutations, (size!, size)."""
    return torch.tensor(list(itertools.permutations(range(size))))


def values(a: Tensor, b: Tensor, perms: Tensor) -> Tensor:
    """⟨P A Qᵀ, B⟩ for every pair: (number of P, number of Q)."""
    moved = a[perms[:, None, :, None], perms[None, :, None, :]]
    return (moved * b).sum((2, 3))


def reduced(c: Tensor, d: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    """A and B of the proof."""
    eye = torch.eye(len(c), dtype=c.dtype)
    return c + shift * eye, d - shift * eye


def equal(found: Tensor) -> bool:
    """Whether the minimum over all pairs is attained at P = Q."""
    lowest = found.min()
    return bool(found.diagonal().min() <= lowest + 1e-9 * (1 + lowest.abs()))


def identity(c: Tensor, d: Tensor, shift: float, perms: Tensor) -> float:
    """By how much the minimum differs from -λ tr C + λ tr D - λ²n + min ⟨P C Pᵀ, D⟩, relative."""
    lowest = values(*reduced(c, d, shift), perms).min()
    quadratic = values(c, d, perms).diagonal().min()
    wanted = -shift * c.trace() + shift * d.trace() - shift**2 * len(c) + quadratic
    return float((lowest - wanted).abs() / wanted.abs())


def smallest(c: Tensor, d: Tensor, perms: Tensor, enough: float) -> float:
    """The smallest λ, of 0 to `enough`, from which on P = Q is best; by bisection."""
    low, high = 0.0, enough
    for _ in range(STEPS):
        middle = (low + high) / 2
        good = equal(values(*reduced(c, d, middle), perms))
        low, high = (low, middle) if good else (middle, high)
    return high


def run(bench: Bench) -> Outcome:
    perms, size = orders(bench.p.size), bench.p.size
    agree = (perms[:, None] == perms[None]).sum(2)
    most = int(agree[agree < size].max())

    def draw(number: int) -> list[float]:
        generator = bench.generator(f"matrices {number}")
        c, d = torch.randn(2, size, size, generator=generator, dtype=torch.float64)
        bound = 5 * size * float(torch.stack([c.abs().max(), d.abs().max()]).max())
        found = values(*reduced(c, d, bound), perms)
        least = smallest(c, d, perms, bound)
        return [float(equal(found)), identity(c, d, bound, perms), least / bound]

    drawn = bench.each("draw", range(bench.p.draws), draw)
    hits, errors, shares = (list(column) for column in zip(*drawn, strict=True))
    source = "Git Re-Basin A.8"
    claims = [
        share(
            source,
            "with λ = 5dα, the best P and Q are equal",
            f"share of {len(drawn)} draws, and of more of their kind",
            (0.9, 1.0),
            int(sum(hits)),
            len(drawn),
        ),
        exact(
            source,
            "and the minimum is that of the quadratic assignment problem, shifted",
            "largest relative difference",
            (0.0, 1e-9),
            max(errors),
        ),
        exact(
            source,
            "tr(P Qᵀ) is d - 1 at most where P and Q differ",
            "the largest there is",
            (-float("inf"), size - 1),
            most,
        ),
    ]
    rows = [("5dα", 1.0, 1.0, 1.0), ("smallest that works, / 5dα", min(shares), _middle(shares), max(shares))]
    note = (
        f"Two permutations that differ do so in two places or more, so tr(P Qᵀ) is d - 2 = {size - 2} at "
        "most, and the λ of the proof is larger than it has to be."
    )
    ordered = sorted(shares)
    line = Line("", ordered, [(k + 1) / len(ordered) for k in range(len(ordered))])
    panel = Panel("the smallest λ that works", "λ / 5dα", "share of draws", [line], floor=0)
    table = Table("How large λ has to be", ("λ", "least", "median", "most"), rows)
    return Outcome(claims, [table], [panel], [note])


def _middle(numbers: list[float]) -> float:
    return float(torch.tensor(numbers, dtype=torch.float64).median())
