"""A picture of loss and metrics along the path, and what else has curves (PNG)."""

from __future__ import annotations

from .. import Report, barrier, pictures

FILENAME = "report.png"
HELP = "Draw the report as one picture."


def render(report: Report) -> bytes:
    """Panels of loss and metrics over λ, of what was learnt, of how sure the models are, as far as known.

    Equal reports give equal bytes with one version of matplotlib.
    """
    return pictures.png(barrier.document(report))
