"""A plausible matching that fails: towards the steepest descent of the loss.

If B is permuted so that the path from A begins as steeply downwards as it can, the loss does fall at first,
and then rises higher than for any other matching: the direction says nothing of what comes behind. The
search is the assignment of weight matching with the negative gradient in A's place.
"""

from __future__ import annotations

from typing import Any

import torch

from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import ABOVE, BELOW, Line, Outcome, Panel, Table, mean

PAPER = "Git Re-Basin A.7"
FASTER = "fewer epochs: training takes most of the time"
SOURCE = "Git Re-Basin A.7"

METHODS = ("naive", "wm", "steepest")
NEAR = (1e-4, 1e-3, 1e-2)  # of the path: curvature wins beyond


def gradient(stack: stacks.Stack, inputs: torch.Tensor, targets: torch.Tensor) -> stacks.Stack:
    """Of every network's mean loss over all samples."""
    leaves = [(w.clone().requires_grad_(), b.clone().requires_grad_()) for w, b in stack]
    stacks.cross_entropies(stacks.outputs(leaves, inputs), targets).sum().backward()
    return [(_slope(w), _slope(b)) for w, b in leaves]


def _slope(leaf: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def inner(one: stacks.Stack, other: stacks.Stack) -> torch.Tensor:
    """⟨one, other⟩ of every network, float64 (N,)."""
    found = torch.zeros(len(one[0][0]), dtype=torch.float64)
    for x, y in zip(one, other, strict=True):
        for a, b in zip(x, y, strict=True):
            found += (a.double() * b.double()).flatten(1).sum(1)
    return found


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, _, classes = samples.opened(p.data, bench.root, limit=p.samples)

    def everything(_: str) -> list[Any]:
        """For every pair and method: slope, first losses minus A's, barrier; the path; ‖∇‖ beside."""
        one, other = training.ends(bench, train, classes)
        slope = gradient(one, *train)
        down = [(-w, -b) for w, b in slope]
        targets = {"naive": other, "wm": matching.aligned(one, other, seed=bench.seed)}
        targets["steepest"] = matching.aligned(down, other, seed=bench.seed)
        size, at_a = inner(slope, slope).sqrt(), stacks.measured(one, *train).loss
        found = []
        for b in targets.values():
            first = inner(slope, b) - inner(slope, one)
            near = [stacks.measured(stacks.mixed(one, b, t), *train).loss - at_a for t in NEAR]
            losses = stacks.path(one, b, *train, p.points).loss
            rows = torch.cat([torch.stack([first, *near, stacks.heights(losses)[0]], 1), losses], 1)
            found.append(rows.tolist())
        return [found, size.tolist()]

    ((found, sizes),) = bench.each("training and matching", [f"{p.pairs} pairs"], everything)
    figures = torch.tensor(found, dtype=torch.float64)  # (methods, pairs, figures)
    means = figures.mean(1)
    naive, wm_, steepest = figures
    about = f"{p.pairs} pairs, train"
    claims = [
        mean(SOURCE, says, f"{number}, {about}", expected, values.tolist())
        for says, number, expected, values in (
            ("the path begins downwards", "slope of the loss at A", BELOW, steepest[:, 0]),
            ("the loss does fall at first", f"loss at λ = {NEAR[1]:g} minus A's", BELOW, steepest[:, 2]),
            ("the barrier is higher than after wm", "difference", ABOVE, steepest[:, 4] - wm_[:, 4]),
            ("and high beside no matching at all", "difference", ABOVE, steepest[:, 4] - naive[:, 4]),
        )
    ]
    head = ("", "slope at A", *(f"L({t:g}) - L(A)" for t in NEAR), "barrier")
    rows = [(name, *row[:5].tolist()) for name, row in zip(METHODS, means, strict=True)]
    at = torch.linspace(0, 1, p.points).tolist()
    lines = [Line(name, at, row[5:].tolist()) for name, row in zip(METHODS, means, strict=True)]
    panel = Panel("mean training loss from A to πB", "λ", "nats", lines, "y")
    note = f"‖∇L(A)‖ is {sum(sizes) / len(sizes):.3g} on average: at a minimum the direction would be noise."
    return Outcome(claims, [Table(f"Means of {p.pairs} pairs, {p.data}", head, rows)], [panel], [note])
