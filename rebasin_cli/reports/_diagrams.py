"""Two more drawings of the page: how right models are where they are sure, and which units matched (SVG)."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import Reliability, Report
from ._format import clean, fixed, learning, splits
from ._plot import WIDTH, styles, ticks

ENSEMBLE = "logit ensemble"
ENDS = (("#6E7781", "#9AA4AF"), ("#9A6700", "#D4A72C"))  # A and B, on light and on dark pages
RARE = 0.005  # of the samples: a bin with fewer is drawn pale, its height is mostly chance


@dataclass(frozen=True)
class Diagram:
    """A reliability diagram: whose, its colours on light and dark pages, its `ece` and bins."""

    name: str
    color: tuple[str, str]
    ece: float
    bins: Reliability

    def bars(self) -> list[tuple[int, float, float, bool]]:
        """(bin, mean confidence, accuracy, whether it is rare) of the bins that hold samples."""
        total = math.fsum(self.bins.samples)
        columns = zip(self.bins.samples, self.bins.confidence, self.bins.accuracy, strict=False)
        return [
            (place, sure, right, count < RARE * total)
            for place, (count, sure, right) in enumerate(columns)
            if count
        ]


def reliability(report: Report) -> list[Diagram]:
    """Of the endpoints, the shipped row and the ensemble, on the first split, as far as measured."""
    split, found = next(iter(splits(report)), ""), []
    for letter, color, ends in zip("AB", ENDS, report.endpoints, strict=False):
        scores = ends.get(split) or {}
        if scores.get("reliability"):
            bins = Reliability(**{key: tuple(values) for key, values in scores["reliability"].items()})
            found.append(Diagram(letter, color, scores["ece"], bins))
    for row in report.rows:
        if (row.shipped or row.name == ENSEMBLE) and split in row.middle:
            middle = row.middle[split]
            color = styles(report)[row.name].color
            found.append(Diagram(clean(row.name), color, middle.ece, middle.reliability))
    return [diagram for diagram in found if diagram.bins.samples]


SIDE, EDGE, LEFT = 190, 26, 34


def reliability_svg(diagram: Diagram, number: int) -> str:
    """Accuracy over confidence in bars; on the dotted line confidence is what it should be."""
    place = LEFT, SIDE - EDGE

    def at(x: float, y: float) -> tuple[float, float]:
        return place[0] + (SIDE - LEFT - 8) * x, place[1] - (SIDE - EDGE - 8) * y

    label = f"Reliability of {diagram.name}: ECE {fixed(diagram.ece)}"
    parts = [f'<svg viewBox="0 0 {SIDE} {SIDE}" role="img" aria-label="{html.escape(label)}">']
    for tick in (0, 0.5, 1):
        x, y = at(tick, tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{SIDE - 8}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{SIDE - 9}" text-anchor="middle">{tick}</text>')
    parts.append(f'<g class="sure{number}">')
    count = len(diagram.bins.samples)
    for bin_, sure, right, rare in diagram.bars():
        (left, top), (right_edge, bottom) = at(bin_ / count, right), at((bin_ + 1) / count, 0)
        box = f'x="{left + 0.6:.1f}" y="{top:.1f}" width="{right_edge - left - 1.2:.1f}"'
        css = "bar rare" if rare else "bar"
        told = f"confidence {sure:.3f} on average: accuracy {right:.3f}"
        parts.append(f'<rect class="{css}" {box} height="{max(bottom - top, 0.8):.1f}">{_told(told)}</rect>')
    (x, y), (x2, y2) = at(0, 0), at(1, 1)
    parts += ["</g>", f'<path class="chord" d="M{x:.1f} {y:.1f}L{x2:.1f} {y2:.1f}"/>']
    parts.append(f'<path class="axis" d="M{LEFT} 8V{SIDE - EDGE}H{SIDE - 8}"/>')
    return "\n".join([*parts, "</svg>"])


def colors(diagrams: Sequence[Diagram]) -> str:
    """The diagrams' colours as style rules, for light pages and dark."""
    light, dark = (
        "".join(f".sure{k} {{ --row: {diagram.color[scheme]}; }}\n" for k, diagram in enumerate(diagrams))
        for scheme in (0, 1)
    )
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}" if diagrams else ""


HIGH, FOOT, SIDES = 250, 46, (46, 14)
SERIES = (("before", -0.14, "o"), ("after", 0.14, "s"))


def _told(text: str) -> str:
    """What a shape tells when it is pointed at."""
    return f"<title>{html.escape(text)}</title>"


def signature_svg(words: Sequence[Mapping[str, Any]]) -> str:
    """Matched correlation of each word's units, mean ± standard deviation, before and after alignment."""
    values = [v for word in words for when, _, _ in SERIES for v in _reach(word, when)] or [0.0, 1.0]
    low, high = min(0.0, *values), max(1.0, *values)

    def down(value: float) -> float:
        return HIGH - FOOT - (HIGH - FOOT - 12) * (value - low) / (high - low)

    def across(place: float) -> float:
        return SIDES[0] + (WIDTH - sum(SIDES)) * (place + 0.5) / max(len(words), 1)

    label = "Matched correlation per word, before and after alignment"
    parts = [f'<svg viewBox="0 0 {WIDTH} {HIGH}" role="img" aria-label="{label}">']
    for tick in ticks(low, high):
        parts.append(f'<path class="grid" d="M{SIDES[0]} {down(tick):.1f}H{WIDTH - SIDES[1]}"/>')
        where = f'x="{SIDES[0] - 7}" y="{down(tick) + 4:.1f}" text-anchor="end"'
        parts.append(f'<text class="tick" {where}>{tick:.2g}</text>')
    every = -(-len(words) // 12)  # names would run into each other
    for place, word in enumerate(words):
        if place % every == 0:
            name = clean(word.get("word", ""))
            name = name if len(name) < 14 else name[:12] + "…"
            where = f'x="{across(place):.1f}" y="{HIGH - FOOT + 18}" text-anchor="middle"'
            parts.append(f'<text class="tick" {where}>{html.escape(name)}</text>')
    for when, shift, _ in SERIES:
        parts.append(f'<g class="{when}">')
        shift = shift if len(words) < 40 else shift / 2
        for place, word in enumerate(words):
            if reach := _reach(word, when):
                x, top, middle, bottom = across(place + shift), *map(down, (reach[1], reach[2], reach[0]))
                parts.append(f'<path class="line" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
                mean, half = reach[2], reach[1] - reach[2]
                told = f"{clean(word.get('word', ''))} {when} alignment: {mean:z.3f} ± {half:.3f}"
                mark = f'<circle class="mark" cx="{x:.1f}" cy="{middle:.1f}" r="3.4"/>'
                hit = f'<circle class="hit" cx="{x:.1f}" cy="{middle:.1f}" r="7">{_told(told)}</circle>'
                parts += [mark, hit]
        parts.append("</g>")
    parts.append(f'<path class="axis" d="M{SIDES[0]} 12V{HIGH - FOOT}H{WIDTH - SIDES[1]}"/>')
    for (when, _, _), x in zip(SERIES, (SIDES[0] + 6, SIDES[0] + 96), strict=True):
        parts.append(f'<g class="{when}"><circle class="mark" cx="{x}" cy="{HIGH - 9}" r="3.4"/></g>')
        parts.append(f'<text class="tick" x="{x + 9}" y="{HIGH - 5}">{when}</text>')
    return "\n".join([*parts, "</svg>"])


def learning_svg(report: Report) -> str:
    """Held-out loss of the models' mean over the steps of a search that learns; the best is marked."""
    rows = learning(report)
    steps, losses = [row["step"] for row in rows], [row["held_out_loss"] for row in rows]
    low, high = min(losses), max(losses)
    high = high if high > low else low + 1

    def at(step: float, loss: float) -> tuple[float, float]:
        x = SIDES[0] + (WIDTH - sum(SIDES)) * step / max(1.0, *steps)
        return x, HIGH - FOOT - (HIGH - FOOT - 12) * (loss - low) / (high - low)

    label = "Held-out loss at the mean of the models, over steps"
    parts = [f'<svg viewBox="0 0 {WIDTH} {HIGH}" role="img" aria-label="{label}">']
    for tick in ticks(low, high):
        y = at(0, tick)[1]
        parts.append(f'<path class="grid" d="M{SIDES[0]} {y:.1f}H{WIDTH - SIDES[1]}"/>')
        where = f'x="{SIDES[0] - 7}" y="{y + 4:.1f}" text-anchor="end"'
        parts.append(f'<text class="tick" {where}>{tick:.3g}</text>')
    for step in {0.0, max(steps)}:
        where = f'x="{at(step, low)[0]:.1f}" y="{HIGH - FOOT + 18}" text-anchor="middle"'
        parts.append(f'<text class="tick" {where}>{step:.0f}</text>')
    points = [at(*point) for point in zip(steps, losses, strict=True)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts.append(f'<g class="after"><path class="line" fill="none" d="M{path}"/>')
    x, y = points[losses.index(low)]
    parts.append(f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="4"/></g>')
    for row, (x, y) in zip(rows, points, strict=True):
        told = _told(f"step {row['step']:.0f}: held-out loss {fixed(row['held_out_loss'])} nats")
        parts.append(f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="6">{told}</circle>')
    parts.append(f'<path class="axis" d="M{SIDES[0]} 12V{HIGH - FOOT}H{WIDTH - SIDES[1]}"/>')
    return "\n".join([*parts, "</svg>"])


def _reach(word: Any, when: str) -> list[float]:
    """Mean − std, mean + std and mean of a word; [] where they are no numbers."""
    found = word.get(when) or {}
    mean, std = found.get("mean"), found.get("std")
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in (mean, std)):
        return []
    return [mean - std, mean + std, mean]
