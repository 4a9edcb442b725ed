"""From which learning rate on do students grow sparse?

Gradient descent on the exact loss, from small Gaussian weights. Below a threshold of the step times m all
rows stay; above it some rows die, the PQ index of the row norms jumps, and soon after descent diverges. The
paper also says that minima drawn evenly are the least sparse of all.
"""

from __future__ import annotations

from typing import Any

import torch

from .engine.bench import Bench
from .engine.claims import Claim, Line, Outcome, Panel, Table, exact, mean, share
from .teacher import descent, minima, systems

PAPER = "Permutation Invariance in LMC, Definition 7, Figures 5 and 6"
FASTER = "fewer steps: norms of rows settle within thousands; entries go on growing sparse (PQI all)"
SOURCE = "Permutation Invariance in LMC, Figures 5 and 6"

DEAD = 1e-3  # of a row's norm
ORDERS = ((0.5, 1.0), (1.0, 2.0))  # p and q: the paper's own are lost


def indices(students: torch.Tensor) -> list[float]:
    """Mean PQ index over students: of row norms and of all entries, for both orders."""
    norms, flat = students.norm(dim=-1), students.flatten(1)
    return [float(systems.pq_index(values, *o).mean()) for o in ORDERS for values in (norms, flat)]


def run(bench: Bench) -> Outcome:
    p = bench.p
    units = p.teacher

    def solve(m: int) -> list[Any]:
        """Of every rate: runs that end, the share of dead rows of each, PQ indices, the largest loss."""
        start = descent.initial(p.runs, m, units, p.spread, bench.generator(f"start {m}"))
        rates = torch.tensor(p.rates, dtype=torch.float64).repeat_interleave(p.runs)
        ends = descent.descend(start.repeat(len(p.rates), 1, 1), units, rates, p.steps)
        found = []
        for rate, students in zip(p.rates, ends.split(p.runs), strict=True):
            fine = students[~students.isnan().flatten(1).any(1)]
            dead = (fine.norm(dim=-1) < DEAD).double().mean(1).tolist()
            losses = systems.loss(fine, units)
            found.append(
                [rate, dead, indices(fine) if len(fine) else [], float(losses.max()) if len(fine) else None]
            )
        even = minima.drawn(p.runs * 20, m, units, bench.generator(f"minima {m}"))
        starts = [from_spread(m, spread) for spread in p.spreads]
        return [found, indices(even), _spread(even), starts]

    def from_spread(m: int, spread: float) -> list[list[float]]:
        """The PQ index of row norms of every run at ηm = 2, by both orders."""
        start = descent.initial(p.runs, m, units, spread, bench.generator(f"start {m} with {spread}"))
        norms = descent.descend(start, units, 2.0, p.steps).norm(dim=-1)
        return [systems.pq_index(norms, *order).tolist() for order in ORDERS]

    widths = [m for m in p.students if m >= units]
    solved = bench.each("descending, m =", widths, solve)
    claims, tables, panels = [], [], []
    for m, (rows, even, errors, _) in zip(widths, solved, strict=True):
        claims += _claims(m, rows, even, errors)
        head = (
            "ηm",
            "runs that end",
            "rows that are dead",
            *(f"PQI {w} {o}" for o in ORDERS for w in ("rows", "all")),
        )
        body = [(r, len(d), sum(d) / len(d) if d else None, *(i or [None] * 4)) for r, d, i, _ in rows]
        body.append(("minima drawn evenly", p.runs * 20, 0.0, *even))
        tables.append(Table(f"Solutions by learning rate, m = {m}", head, body))
        ended = [row for row in rows if row[1]]
        at = [row[0] for row in ended]
        lines = [Line("dead rows", at, [sum(row[1]) / len(row[1]) for row in ended])]
        lines.append(Line("PQI of row norms", at, [row[2][0] for row in ended]))
        lines.append(Line("PQI, minima drawn evenly", at, [even[0]] * len(at), dashed=True))
        panels.append(Panel(f"m = {m}, k = {units}", "learning rate × m", "", lines, floor=0))
    claims += _starts(solved, widths, p)
    note = "The orders p and q of the index are not in the text at hand: both usual choices are given."
    return Outcome(claims, tables, panels, [note])


def _starts(solved: list[Any], widths: list[int], p: Any) -> list[Claim]:
    """Whether minima drawn evenly are the least sparse, by the spread of the first weights and the order."""
    found = []
    for m, (_, even, _, *spread) in zip(widths, solved, strict=True):
        for at, start in zip(p.spreads, spread[0], strict=True):
            for place, order in enumerate(ORDERS):
                values = [even[2 * place] - one for one in start[place]]
                about = f"PQI {order} of rows minus that of descent at ηm = 2, first spread {at:g}, m = {m}"
                says = "minima drawn evenly are the least sparse"
                found.append(mean(SOURCE, says, about, (float("-inf"), 0), values))
    return found


def _spread(students: torch.Tensor) -> float:
    """The standard error of the mean PQ index of row norms, of the first order."""
    return float(systems.pq_index(students.norm(dim=-1), *ORDERS[0]).std() / len(students) ** 0.5)


def _claims(m: int, rows: list[Any], even: list[float], error: float) -> list[Claim]:
    slow = [row for row in rows if row[0] <= 4 and row[1]]
    fast = [row for row in rows if 4 < row[0] <= 6.5 and row[1]]
    found = []
    if slow:
        dead = [one > 0 for row in slow for one in row[1]]
        says, about = "below the threshold no row dies", f"share of runs with a dead row, ηm ≤ 4, m = {m}"
        found.append(share(SOURCE, says, about, (0, 0.35), sum(dead), len(dead)))
    first = next((row[0] for row in rows if not row[1] or sum(row[1]) > 0), None)
    if first is not None:
        says = "the transition is sharp, between ηm = 4 and 6 (measured apart)"
        about = f"the first ηm with dead rows or without an end, m = {m}"
        found.append(exact(SOURCE, says, about, (4, 6.5), first))
    if fast and len(fast[-1][1]) > 1:
        says, about = "above it rows die", f"share of dead rows at ηm = {fast[-1][0]:g}, m = {m}"
        found.append(mean(SOURCE, says, about, (1e-9, 1), fast[-1][1]))
    if slow:
        says = "minima drawn evenly are the least sparse"
        about = f"PQI of their row norms minus that of descent at ηm = {slow[0][0]:g}, m = {m}"
        differs = even[0] - slow[0][2][0]
        between = (differs - 1.96 * error, differs + 1.96 * error)
        found.append(Claim(SOURCE, says, about, (float("-inf"), 0), differs, between))
    return found
