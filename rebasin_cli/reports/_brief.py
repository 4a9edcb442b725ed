"""A report in a few lines, for a log: the endpoints, what would be shipped, the barrier, every gate."""

from __future__ import annotations

from . import Report
from ._conclusion import conclude
from ._format import MISSING, clean, endpoint_figures, endpoints, figures, splits
from ._gates import GateResult, baselines, results, shouted


def brief(report: Report) -> list[str]:
    """Figures of the split that counts, the verdict, then a line a gate, met or not."""
    split, lines = next(iter(splits(report)), ""), []
    for letter, file, ends in endpoints(report):
        lines.append(f"{letter} {file}: {clean(split)} {_both(endpoint_figures(ends, split))}")
    for row in report.rows:
        if row.shipped:
            loss, accuracy, midpoint, chord, *_ = figures(row, split)
            height = f"barrier {chord} nats (chord), {midpoint} (midpoint)" if chord != MISSING else ""
            both = ", ".join(filter(None, [_both((loss, accuracy)), height]))
            lines.append(f"▸ {clean(row.name)}: {clean(split)} {both} at λ=½")
    return [*lines, *filter(None, [conclude(report)]), *told(results(report))]


def told(gates: list[GateResult]) -> list[str]:
    """A line a gate, and which baseline they were held against."""
    return [*(f"{shouted(gate)}  {clean(gate.told)}" for gate in gates), *baselines(gates)]


def _both(figures: tuple[str, str]) -> str:
    loss, accuracy = figures
    return f"loss {loss}, accuracy {accuracy}"
