"""Lines over a number, as a drawing whose points tell their figures (SVG)."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ._format import clean, fixed
from ._plot import BOTTOM, HEIGHT, LEFT, MARKERS, PALETTE, RIGHT, TOP, WIDTH, marker, ticks

COLORS = list(PALETTE.values())


@dataclass(frozen=True)
class Line:
    """`points` are (x, y) from left to right; a `faint` one is dashed, for others to be held against."""

    name: str
    points: tuple[tuple[float, float], ...]
    faint: bool = False


def svg(lines: Sequence[Line], label: str, quantity: str, across: str, top: float = math.inf) -> str:
    """One panel. What lies above `top` is drawn at the upper edge; its point tells the true figure."""
    finite = [(x, y) for line in lines for x, y in line.points if math.isfinite(y)]
    values = [min(y, top) for _, y in finite] or [0.0, 1.0]
    places = sorted({x for line in lines for x, _ in line.points}) or [0.0]
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
    low, high = low - margin, high + margin

    def at(x: float, y: float) -> tuple[float, float]:
        share = (x - places[0]) / (places[-1] - places[0]) if len(places) > 1 else 0.5
        right = LEFT + 12 + (WIDTH - LEFT - RIGHT - 24) * share
        return right, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (min(y, top) - low) / (high - low)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}">']
    for tick in ticks(low, high):
        y = at(places[0], tick)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{tick:.6g}</text>')
    every = -(-len(places) // 12)
    for x in places[::every]:
        where = f'x="{at(x, low)[0]:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle"'
        parts.append(f'<text class="tick" {where}>{x:g}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    for number, line in enumerate(lines):
        placed = [(at(x, y), x, y) for x, y in line.points if math.isfinite(y)]
        if not placed:
            continue
        path = "L".join(f"{x:.1f} {y:.1f}" for (x, y), _, _ in placed)
        parts.append(f'<g class="line{number}{" thin" * line.faint}"><path class="line" d="M{path}"/>')
        kind = MARKERS[number % len(MARKERS)]
        parts += [marker(kind, *where, 3.4) for where, _, _ in placed if not line.faint] + ["</g>"]
        for (x, y), count, value in placed:
            beyond = ", beyond the axis" * (value > top)
            told = html.escape(f"{clean(line.name)}: {count:g} {across}, {quantity} {fixed(value)}{beyond}")
            parts.append(
                f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="7"><title>{told}</title></circle>'
            )
    return "\n".join([*parts, "</svg>"])


def keys(lines: Sequence[Line]) -> str:
    """What is what, below the panels."""
    entries = []
    for number, line in enumerate(lines):
        shape = "" if line.faint else marker(MARKERS[number % len(MARKERS)], 18, 9, 4)
        css = f"line{number}{' thin' * line.faint}"
        drawn = f'<g class="{css}"><path class="line" d="M2 9H34"/>{shape}</g>'
        key = f'<svg class="key" viewBox="0 0 36 18" aria-hidden="true">{drawn}</svg>'
        entries.append(f"<li>{key} {html.escape(clean(line.name))}</li>")
    return '<ul class="keys">\n' + "\n".join(entries) + "\n</ul>"


def colors(lines: Sequence[Line]) -> str:
    """Style rules, for light pages and dark."""
    light, dark = (
        "".join(f".line{k} {{ --row: {COLORS[k % len(COLORS)][scheme]}; }}\n" for k in range(len(lines)))
        for scheme in (0, 1)
    )
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}"
