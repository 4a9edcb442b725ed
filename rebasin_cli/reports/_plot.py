"""The path as a picture: what the PNG and the page's own drawing share, and that drawing (SVG).

One colour and one marker a row, test drawn solid, other splits thin and dashed; a row with only a few
points shows the points alone, because a line between them would claim what was not measured.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import Curve, Report, Row
from ._format import clean, fixed, splits, tags

# Okabe & Ito's palette, told apart with every common kind of colour blindness; light page, dark page.
PALETTE = {
    "naive": ("#D55E00", "#F28A3C"),
    "aligned": ("#0072B2", "#56B4E9"),
    "aligned +": ("#009E73", "#2FD0A2"),
    "naive +": ("#CC79A7", "#E29CC3"),
    "random permutation": ("#6E7781", "#9AA4AF"),
    "logit ensemble": ("#1F2328", "#E6EDF3"),
    "curve (unaligned)": ("#A0522D", "#D9A074"),
    "curve (aligned)": ("#6A3D9A", "#B79AE0"),
    "other": ("#8A7000", "#F0E442"),
}
MARKERS = ("o", "s", "^", "D", "v", "+", "D", "s", "v")
TEMPERATURE = " + temperature"  # in the colour of the row that it is about
FEW = 4  # points; with fewer than this no line is drawn
LOG_FROM = 20.0  # nats: above, a linear axis would press every other row onto the floor


@dataclass(frozen=True)
class Style:
    """How a row is drawn."""

    color: tuple[str, str]  # on light, on dark
    marker: str
    shipped: bool


def styles(report: Report) -> dict[str, Style]:
    """A style for each row by its name; the familiar rows have the same colour in every report."""
    kinds = list(PALETTE)
    found = {}
    for row in report.rows:
        base, scaled, _ = row.name.partition(TEMPERATURE)
        kind = next(
            (k for k in (base, base.partition(" +")[0] + " +", base.partition(" +")[0]) if k in PALETTE), ""
        )
        kind = kind or "other"
        marker = "x" if scaled else MARKERS[min(kinds.index(kind), len(MARKERS) - 1)]
        found[row.name] = Style(PALETTE[kind], marker, row.shipped)
    return found


def points(curve: Curve, quantity: str) -> list[tuple[float, float]]:
    """The finite points (λ, value), from left to right; of a few points only those between the ends."""
    values = zip(curve.lambdas, getattr(curve, quantity), strict=True)
    found = sorted((x, y) for x, y in values if math.isfinite(x) and math.isfinite(y))
    return [(x, y) for x, y in found if 0 < x < 1] or found if len(found) < FEW else found


def drawing_order(report: Report) -> list[Row]:
    """The shipped row last, so that it lies on top."""
    return sorted(report.rows, key=lambda row: row.shipped)


def is_few(row: Row, split: str) -> bool:
    return len(row.curves[split].lambdas) < FEW


def logarithmic(report: Report) -> bool:
    """Whether the loss needs a logarithmic axis."""
    values = [y for row in report.rows for curve in row.curves.values() for _, y in points(curve, "loss")]
    return bool(values) and max(values) > LOG_FROM and min(values) > 0


def chord(report: Report, quantity: str, split: str) -> list[tuple[float, float]]:
    """The straight line between the endpoints, [] where they were not measured."""
    ends = [(model.get(split) or {}).get(quantity) for model in report.endpoints]
    known = len(ends) == 2 and all(isinstance(end, int | float) and math.isfinite(end) for end in ends)
    return [(0.0, ends[0]), (1.0, ends[1])] if known else []


def second(report: Report) -> str:
    """What lies at λ = 1: the second model, permuted if anything was."""
    return "B" if report.match.get("method") in (None, "none") else "πB"


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """About five round numbers from `low` to `high`; `whole` ones where there are any."""
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    found = [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]
    return [tick for tick in found if whole and tick == round(tick)] or found


def _power(exponent: float) -> str:
    return f"{10**exponent:.3g}" if -4 <= exponent < 3 else f"1e{exponent:g}"


# The drawing. Its colours are classes, so that the page's style sheet can change them for the dark.

WIDTH, HEIGHT = 480, 292
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 32


def svg(report: Report, quantity: str, label: str) -> str:
    """One panel as SVG: `quantity` ("loss" or "accuracy") over λ."""
    log = quantity == "loss" and logarithmic(report)
    shown = splits(report)[:2]
    every = [p for split in shown for p in chord(report, quantity, split)]
    for row in report.rows:
        every += [p for split in shown if split in row.curves for p in points(row.curves[split], quantity)]
    values = [math.log10(y) if log else y for _, y in every] or [0.0, 1.0]
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
    low, high = low - margin, high + margin

    def down(height: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (height - low) / (high - low)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - RIGHT) * point[0], down(math.log10(point[1]) if log else point[1])

    title = f"{label} along the path from A to {second(report)}"
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">']
    for tick in ticks(low, high, whole=log):
        y, text = down(tick), _power(tick) if log else f"{tick:.6g}"
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for x, text in ((0, "A"), (0.25, "¼"), (0.5, "λ = ½"), (0.75, "¾"), (1, second(report))):
        across, bold = LEFT + (WIDTH - LEFT - RIGHT) * x, ' font-weight="700"' if x in (0, 1) else ""
        where = f'x="{across:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle"'
        parts.append(f'<text class="tick" {where}{bold}>{text}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    straight = chord(report, quantity, shown[0]) if shown else []
    if straight:
        parts.append(f'<path class="chord" d="{_path([place(point) for point in straight])}"/>')
    found = styles(report)
    for row in drawing_order(report):
        number = list(found).index(row.name)
        for split in reversed(shown):
            if split in row.curves:
                placed = [place(point) for point in points(row.curves[split], quantity)]
                parts += _row(row, found[row.name], number, placed, split, split == shown[0])
    for row in drawing_order(report):  # above all lines, the shipped row's last
        for split in reversed(shown):
            if split in row.curves:
                parts += _told(row, split, quantity, place)
    return "\n".join([*parts, "</svg>"])


def _told(
    row: Row, split: str, quantity: str, place: Callable[[tuple[float, float]], tuple[float, float]]
) -> list[str]:
    """What a point tells when it is pointed at, where it is drawn and where only a line passes."""
    unit, told = " nats" * (quantity == "loss"), []
    for point in points(row.curves[split], quantity):
        x, y = place(point)
        said = f"{clean(row.name)}, {clean(split)}: λ = {point[0]:.4g}, {quantity} {fixed(point[1])}{unit}"
        told.append(
            f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>{html.escape(said)}</title></circle>'
        )
    return told


def _row(
    row: Row, style: Style, number: int, placed: Sequence[tuple[float, float]], split: str, solid: bool
) -> list[str]:
    classes = f"row{number}{' shipped' if style.shipped else ''}{'' if solid else ' thin'}"
    title = f"<title>{html.escape(clean(row.name))}, {html.escape(clean(split))}</title>"
    drawn = [] if is_few(row, split) or not placed else [f'<path class="line" d="{_path(placed)}"/>']
    every = 1 if len(placed) < 14 else 2
    size = (4.2 if style.shipped else 3.2) if solid else 2.2
    marks = [marker(style.marker, x, y, size) for x, y in placed[::every]] if solid or not drawn else []
    return [f'<g class="{classes}">{title}', *drawn, *marks, "</g>"]


def _path(placed: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)


_THIN, _LONG = 0.4, 1.3
_ARM = ((-_THIN, -_LONG), (_THIN, -_LONG), (_THIN, -_THIN))
CROSS = tuple(
    turned for k in range(4) for x, y in _ARM for turned in [((x, y), (-y, x), (-x, -y), (y, -x))[k]]
)


def marker(kind: str, x: float, y: float, size: float) -> str:
    """A marker of about `size` pixels in radius: circle, square, triangles, diamond, cross, lying cross."""
    if kind == "o":
        return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
    corners = {
        "s": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "^": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
        "D": ((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)),
        "v": ((0, 1.2), (1.1, -0.9), (-1.1, -0.9)),
        "+": CROSS,
        "x": tuple(((x - y) * 0.7, (x + y) * 0.7) for x, y in CROSS),
    }[kind]
    return f'<path class="mark" d="{_path([(x + size * dx, y + size * dy) for dx, dy in corners])}Z"/>'


def legend(report: Report) -> list[tuple[str, str, str]]:
    """(row's name, what is drawn of it, SVG of its key) for each row, in the report's order."""
    found, entries = styles(report), []
    for number, row in enumerate(report.rows):
        style = found[row.name]
        few = all(is_few(row, split) for split in row.curves)
        line = "" if few else '<path class="line" d="M2 9H34"/>'
        shipped = " shipped" if row.shipped else ""
        key = (
            f'<svg class="key" viewBox="0 0 36 18" aria-hidden="true"><g class="row{number}{shipped}">{line}'
            f"{marker(style.marker, 18, 9, 4)}</g></svg>"
        )
        entries.append((clean(row.name), ", ".join(tags(row)), key))
    return entries


def describe(report: Report) -> str:
    """The picture in a sentence, for those who cannot see it."""
    shown = next(iter(splits(report)), None)
    if shown is None:
        return "Nothing was measured."
    rows = [row for row in report.rows if shown in row.barriers]
    heights = ", ".join(f"{clean(row.name)} {fixed(row.barriers[shown].chord)} nats" for row in rows)
    return f"Loss and accuracy along the path. Chord barriers on {clean(shown)}: {heights}."
