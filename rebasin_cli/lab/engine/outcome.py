"""What an experiment found, as values: claims, tables, panels of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .claims import Claim


@dataclass(frozen=True)
class Table:
    """A cell is a text or a number, None where there is none."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Line:
    """What is drawn: points (x, y) with a line, `between` a band (low, high) around it; `bars` of a width."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    between: Sequence[tuple[float, float]] = ()
    bars: float = 0.0
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """`log` holds the axes that are logarithmic, of "xy"; `marks` are vertical lines."""

    title: str
    x: str
    y: str
    lines: Sequence[Line] = ()
    log: str = ""
    marks: Sequence[tuple[float, str]] = ()  # vertical lines, with what they say
    floor: float | None = None  # where the y axis begins


@dataclass(frozen=True)
class Outcome:
    claims: Sequence[Claim]
    tables: Sequence[Table]
    panels: Sequence[Panel]
    notes: Sequence[str] = field(default=())

    def plain(self) -> dict[str, Any]:
        """For JSON: the claims and tables; a picture is drawn from these."""
        tables = [{"title": t.title, "columns": list(t.columns), "rows": list(t.rows)} for t in self.tables]
        return {"claims": [c.plain() for c in self.claims], "tables": tables, "notes": list(self.notes)}
