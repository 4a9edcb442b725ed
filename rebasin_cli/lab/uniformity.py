"""Does gradient descent find all minima alike?

With one unit more than the teacher, one type comes twice: which one it is should be even over runs. And
with a teacher of one unit, the sizes of a student's units should be those of a random point of a simplex.
"""

from __future__ import annotations

from typing import Any

import torch

from .engine.bench import Bench
from .engine.claims import Line, Outcome, Panel, Table, exact, share
from .teacher import descent, minima, systems

PAPER = "Permutation Invariance in LMC, Figure 9"
FASTER = "fewer runs, and a weaker test"
SOURCE = "Permutation Invariance in LMC, Figure 9"

ARRIVED = 1e-4  # of the loss: a run that is at a global minimum
LEVEL = 0.01  # p-values below it are no accident


def doubled(students: torch.Tensor, units: int) -> list[int]:
    """How many students have each type twice."""
    counts = minima.counts_of(students, units)
    return torch.bincount(counts.argmax(1)[counts.max(1).values == 2], minlength=units).tolist()


def run(bench: Bench) -> Outcome:
    from scipy.stats import chisquare, kstest

    p, units = bench.p, bench.p.teacher

    def types(rate: float) -> list[Any]:
        start = descent.initial(p.runs, units + 1, units, p.spread, bench.generator("types"))
        ends = descent.descend(start, units, rate, p.steps)
        good = ends[systems.loss(ends, units) < ARRIVED]
        return [len(good), doubled(good, units)]

    def sizes(spread: float) -> list[float]:
        """All norms of rows times m, of students of a teacher of one unit, sorted."""
        start = descent.initial(p.runs, p.norms, units, spread, bench.generator("sizes"))
        ends = descent.descend(start, 1, p.rates[0], p.steps)
        good = ends[systems.loss(ends, 1) < ARRIVED].norm(dim=2)
        sizes_found: list[float] = (good.flatten() * p.norms).sort().values.tolist()
        return sizes_found

    counted = bench.each("descending, ηm =", p.rates, types)
    measured = bench.each("one unit, spread", p.spreads, sizes)
    claims, rows = [], []
    for rate, (good, counts) in zip(p.rates, counted, strict=True):
        chance = float(chisquare(counts).pvalue) if sum(counts) else float("nan")
        rows.append((rate, good, p.runs, ", ".join(map(str, counts)), chance))
        about = f"p-value of χ² of {sum(counts)} runs, ηm = {rate:g}"
        claims.append(exact(SOURCE, "each type is doubled equally often", about, (LEVEL, 1), chance))
    says, about = "descent ends at a global minimum", f"share of runs at ηm = {p.rates[0]:g}"
    claims.append(share(SOURCE, says, about, (0.9, 1), counted[0][0], p.runs))
    sized, lines = [], []
    for spread, values in zip(p.spreads, measured, strict=True):
        chance = float(kstest(values, "expon").pvalue) if values else float("nan")
        sized.append((spread, len(values), values[len(values) // 2] if values else None, chance))
        says = "with one unit, sizes are exponential"
        about = f"p-value of Kolmogorov and Smirnov, first weights with spread {spread:g}"
        claims.append(exact(SOURCE, says, about, (LEVEL, 1), chance))
        shares = [(k + 0.5) / len(values) for k in range(len(values))]
        lines.append(
            Line(
                f"spread {spread:g}",
                values[:: max(1, len(values) // 200)],
                shares[:: max(1, len(values) // 200)],
            )
        )
    grid = torch.linspace(0, 5, 60, dtype=torch.float64)
    lines.append(Line("exponential", grid.tolist(), (1 - (-grid).exp()).tolist(), dashed=True))
    head = ("ηm", "at a minimum", "runs", "times that each type is doubled", "p-value")
    tables = [Table(f"Which type is doubled, k = {units}", head, rows)]
    columns = ("spread of the first weights", "units", "median size × m (exponential: 0.693)", "p-value")
    tables.append(Table(f"Sizes of units, k = 1, m = {p.norms}", columns, sized))
    counts = counted[0][1]
    bars = Panel("doubled type", "type", "runs", [Line("", list(range(units)), counts, bars=0.8)], floor=0)
    panel = Panel("sizes of units, one unit in the teacher", "size × m", "share below", lines, floor=0)
    return Outcome(
        claims, tables, [bars, panel], ["The paper itself says that sizes vary with rate and spread."]
    )
