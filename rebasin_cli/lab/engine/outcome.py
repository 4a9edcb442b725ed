"""What an experiment found, as values: claims, tables, panels of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...reports.document import Line, Panel
from .claims import Claim

__all__ = ["Line", "Outcome", "Panel", "Table"]


@dataclass(frozen=True)
class Table:
    """A cell is a text or a number, None where there is none."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


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
