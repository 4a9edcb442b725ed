"""Is a path on the sphere better than a straight one?

Aligned pairs are joined by straight lines and by arcs, of all weights as one vector or of each tensor by
itself: the paper does not say which. Norms shrink along a straight line; along an arc they do not.
"""

from __future__ import annotations

from typing import Any

import torch

from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import BELOW, Line, Outcome, Panel, Table, mean

PAPER = "Git Re-Basin §5, footnote 3"
FASTER = "fewer epochs: training takes most of the time"
SOURCE = "Git Re-Basin §5, footnote 3"

KINDS = ("linear", "arc of all weights", "arc of each tensor")


def arc(one: stacks.Stack, other: stacks.Stack, t: float, *, whole: bool) -> stacks.Stack:
    """sin((1 - t)Ω)/sin Ω·one + sin(tΩ)/sin Ω·other, Ω the angle of all weights or of each tensor."""
    pairs = [
        (x, y) for one_, other_ in zip(one, other, strict=True) for x, y in zip(one_, other_, strict=True)
    ]
    parts = [torch.stack([_dot(x, y), _dot(x, x), _dot(y, y)]) for x, y in pairs]  # (3, N) each
    if whole:
        parts = [torch.stack(parts).sum(0)] * len(pairs)
    found = []
    for (x, y), (both, xx, yy) in zip(pairs, parts, strict=True):
        cosine = (both / (xx * yy).sqrt().clamp_min(1e-300)).clamp(-1 + 1e-12, 1 - 1e-12)
        angle = cosine.arccos()
        first, second = ((s * angle).sin() / angle.sin() for s in (1 - t, t))
        shape = (-1, *[1] * (x.ndim - 1))
        found.append(first.view(shape).float() * x + second.view(shape).float() * y)
    return list(zip(found[::2], found[1::2], strict=True))


def _dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.double() * y.double()).flatten(1).sum(1)


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)

    def everything(_: str) -> list[Any]:
        """Test losses and accuracies, (kinds, pairs, points) each."""
        one, other = training.ends(bench, train, classes)
        moved = matching.aligned(one, other, seed=bench.seed)
        found = []
        for kind in KINDS:
            at = [float(t) for t in torch.linspace(0, 1, p.points)]
            if kind == KINDS[0]:
                every = [stacks.mixed(one, moved, t) for t in at]
            else:
                every = [arc(one, moved, t, whole=kind == KINDS[1]) for t in at]
            scores = [stacks.measured(stack, *test) for stack in every]
            found.append(
                [torch.stack([getattr(s, f) for s in scores], 1).tolist() for f in ("loss", "accuracy")]
            )
        return found

    (found,) = bench.each("training and matching", [f"{p.pairs} pairs"], everything)
    figures = torch.tensor(found, dtype=torch.float64)  # (kinds, loss or accuracy, pairs, points)
    middle = figures[..., p.points // 2]
    claims = []
    for k in (1, 2):
        says = f"{KINDS[k]}: slightly better than the straight line"
        about = f"test loss at the middle, difference, {p.pairs} pairs"
        claims.append(mean(SOURCE, says, about, BELOW, (middle[k, 0] - middle[0, 0]).tolist()))
    heights = [stacks.heights(each[0])[1].mean().item() for each in figures]
    rows = [(kind, *middle[k].mean(1).tolist(), heights[k]) for k, kind in enumerate(KINDS)]
    head = ("path", "loss at the middle", "accuracy there", "chord barrier")
    at = torch.linspace(0, 1, p.points).tolist()
    lines = [Line(kind, at, figures[k, 0].mean(0).tolist()) for k, kind in enumerate(KINDS)]
    panel = Panel("mean test loss from A to πB", "position", "nats", lines)
    return Outcome(claims, [Table(f"Means of {p.pairs} pairs, test, {p.data}", head, rows)], [panel], [])
