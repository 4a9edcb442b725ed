"""How many units of two minima find a partner of their type?

Two global minima of a student with m units have, of each of the teacher's k types, some numbers of units.
The share that can be paired falls and then rises with m: where it is lowest, the barrier is highest. The
mean share is known exactly for every m; students drawn at random check it.
"""

from __future__ import annotations

import torch

from .engine.bench import Bench
from .engine.claims import Line, Outcome, Panel, Table, exact, share
from .teacher import minima

PAPER = "Permutation Invariance in LMC, Definition 4, Theorem 5, Figure 1"
FASTER = "nothing: the formula takes milliseconds, the draws seconds"
SOURCE = "Permutation Invariance in LMC, Theorem 5"


def lowest(units: int) -> int:
    """The m with the lowest mean overlap."""
    return min(range(units, 4 * units + 3), key=lambda m: minima.expected_overlap(m, units))


def limit() -> float:
    """The m/k of the lowest overlap where k has no end."""
    from scipy.optimize import minimize_scalar

    return float(minimize_scalar(minima.limit_overlap, bounds=(1.5, 4), method="bounded").x)


def run(bench: Bench) -> Outcome:
    rows = []
    for units in bench.p.teachers:
        m = lowest(units)
        values = [minima.expected_overlap(at, units) for at in (m, 2 * units)]
        rows.append((units, m, m / units, *values))
    ratio = limit()
    rows.append(("∞", None, ratio, minima.limit_overlap(ratio), minima.limit_overlap(2)))

    def draw(units: int) -> list[list[float]]:
        """For some m: the formula, the mean of draws, their distance in standard errors."""
        found = []
        for m in sorted({round(units * r) for r in bench.p.ratios}):
            generator = bench.generator(f"minima of {units} and {m}")
            one, other = (minima.drawn(bench.p.draws, m, units, generator) for _ in range(2))
            shares = minima.overlap(one, other, units)
            formula, mean = minima.expected_overlap(m, units), float(shares.mean())
            error = float(shares.std()) / bench.p.draws**0.5
            found.append([m, formula, mean, abs(mean - formula) / error if error else 0.0])
        return found

    drawn = bench.each("drawing, k =", [k for k in bench.p.teachers if k <= 20], draw)
    distances = [row[3] for of in drawn for row in of]
    claims = [
        exact(
            SOURCE, "the overlap is lowest at m = 2k", "m/k of the lowest overlap, k = ∞", (1.95, 2.05), ratio
        ),
        exact(
            SOURCE,
            "the lowest overlap is 0.7179 (its normal approximation)",
            "lowest overlap, k = ∞",
            (0.715, 0.721),
            minima.limit_overlap(ratio),
        ),
        exact(
            SOURCE,
            "the overlap goes to 1 with m",
            f"overlap at m = 1000k, k = {bench.p.teachers[0]}",
            (0.97, 1),
            minima.expected_overlap(1000 * bench.p.teachers[0], bench.p.teachers[0]),
        ),
        share(
            "the exact formula, of ours",
            "draws agree with it",
            "share of means of draws within three standard errors",
            (0.75, 1),
            sum(distance <= 3 for distance in distances),
            len(distances),
        ),
    ]
    columns = ("k", "m of the lowest", "m/k", "overlap there", "at m = 2k")
    tables = [Table("Where the overlap is lowest", columns, rows)]
    for units, found in zip(bench.p.teachers, drawn, strict=False):
        head = ("m", "formula", "drawn", "distance in standard errors")
        tables.append(Table(f"Draws, k = {units}", head, found))
    lines = []
    for units in bench.p.teachers:
        at = sorted({round(units * r) for r in torch.logspace(0, 1.5, 40).tolist()})
        overlaps = [minima.expected_overlap(m, units) for m in at]
        lines.append(Line(f"k = {units}", [m / units for m in at], overlaps, dashed=True))
    panel = Panel(
        "mean overlap of two minima",
        "m / k",
        "share of units with a partner",
        lines,
        "x",
        [(2, "the paper's 2k")],
    )
    return Outcome(claims, tables, [panel])
