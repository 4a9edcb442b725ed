"""The barrier of trained students falls, rises and falls again with their width.

Pairs of students of the same teacher are trained by gradient descent, and by SGD on samples drawn anew, from
small weights, and permuted by one assignment on their rows; the height of the path above its chord is
computed exactly. Narrower students than the teacher have a loss of their own at both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .engine.bench import Bench
from .engine.claims import BELOW, Claim, Line, Outcome, Panel, Table, bootstrap
from .teacher import descent, minima, systems

PAPER = "Permutation Invariance in LMC, Figures 2 and 4"
FASTER = "fewer steps; a wide student costs m² kernels a step"
SOURCE = "Permutation Invariance in LMC, Figure 4"

KINDS = ("naive", "LAP on weights")


def run(bench: Bench) -> Outcome:
    p, units = bench.p, bench.p.teacher
    widths = sorted({max(1, round(units * ratio)) for ratio in p.ratios})

    def train(m: int) -> list[Any]:
        """By `noise` and pair: the barriers of `KINDS`, and the mean loss of its ends."""
        start = descent.initial(2 * p.pairs, m, units, p.spread, bench.generator(f"start {m}"))
        found = []
        for noise in p.noise:
            if noise:
                generator = bench.generator(f"samples {m}")
                ends = descent.stochastic(start, units, noise, p.steps, generator)
            else:
                ends = descent.descend(start, units, p.rate, p.steps)
            one, other = ends[: p.pairs], ends[p.pairs :]
            rows = [systems.barrier(one, minima.matched(one, other, kind), units) for kind in KINDS]
            rows.append((systems.loss(one, units) + systems.loss(other, units)) / 2)
            found.append(torch.stack(rows, 1).tolist())
        return found

    trained = bench.each("descending, m =", widths, train)
    figures = torch.tensor(trained, dtype=torch.float64)  # (widths, noise, pairs, columns)
    claims, tables, panels = [], [], []
    at = [m / units for m in widths]
    for noise, rows in zip(p.noise, figures.unbind(1), strict=True):
        how = f"SGD at ηm = {noise:g}" if noise else "gradient descent"
        claims += _claims(widths, units, rows[..., 1].T, how, bench.seed)
        means = rows.mean(1).tolist()
        body = [(m, m / units, *row) for m, row in zip(widths, means, strict=True)]
        head = ("m", "m/k", *KINDS, "loss of the ends")
        tables.append(Table(f"Mean of {p.pairs} pairs, k = {units}, {how}", head, body))
        lines = [Line(kind, at, [row[k] for row in means]) for k, kind in enumerate(KINDS)]
        marks = [(1, "m = k"), (2, "2k")]
        panels.append(Panel(f"above the chord, {how}", "m / k", "barrier", lines[1:], "x", marks, 0))
        ends = [Line("loss of the ends", at, [max(row[2], 1e-12) for row in means])]
        panels.append(Panel(f"naive, and the ends, {how}", "m / k", "", [lines[0], *ends], "xy"))
    return Outcome(claims, tables, panels)


Function = Callable[[torch.Tensor], torch.Tensor]  # of means, the figure that a claim is about


def _claims(widths: list[int], units: int, aligned: torch.Tensor, how: str, seed: int) -> list[Claim]:
    """On the fall, rise and fall of barriers after matching (pairs, widths); intervals are over pairs."""
    above = [k for k, m in enumerate(widths) if m > units]
    below = [k for k, m in enumerate(widths) if m < units]
    claims = []

    def add(says: str, about: str, expected: tuple[float, float], function: Function) -> None:
        found = bootstrap(aligned.tolist(), function, seed=seed)
        claims.append(Claim(SOURCE, says, f"{about}, {how}", expected, *found))

    def part(means: torch.Tensor, at: int) -> torch.Tensor:
        return means[..., at] / means[..., above].amax(-1).clamp_min(1e-300)

    if above:
        ratios = torch.tensor([widths[k] / units for k in above], dtype=torch.float64)
        says, about = "above m = k the barrier peaks where m is about 2k", "m/k of the highest mean barrier"
        add(says, about, (1.2, 3.0), lambda means: ratios[means[..., above].argmax(-1)])
        about = f"barrier at m = {widths[-1]} / that at the peak"
        add("and falls for wide students", about, (0, 0.8), lambda means: part(means, -1))
    if units in widths and above:
        at, about = widths.index(units), "barrier at m = k / that at the peak"
        add("at m = k it is lower than at the peak above", about, (0, 0.99), lambda means: part(means, at))
    if below and units in widths:
        says, about = "it falls as m rises to k", "barrier at m = k minus the highest below"
        add(says, about, BELOW, lambda means: means[..., widths.index(units)] - means[..., below].amax(-1))
    return claims
