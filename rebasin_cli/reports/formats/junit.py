"""JUnit XML, one test case a gate, for the test tab of a CI server."""

from __future__ import annotations

from .. import Report
from .._conclusion import conclude
from .._format import figures, headline, splits, title
from .._gates import Ended, results
from .._junit import junit

FILENAME = "junit.xml"
HELP = "Write one JUnit case per gate."

CLASSNAME = "rebasin.barrier"
KEYS = ("loss", "accuracy", "barrier_midpoint", "barrier_chord", "accuracy_midpoint", "accuracy_chord")


def render(report: Report) -> str:
    """A gate that is not met is a failure; without gates a single case says that it was measured."""
    said = "; ".join(filter(None, (headline(report), conclude(report))))
    return junit(
        results(report) or [Ended("measured", said)],
        name=title(report),
        classname=CLASSNAME,
        seconds={"": report.times.get("total", 0.0)},
        properties=_properties(report),
        remarks=(*report.notes, report.command),
    )


def _properties(report: Report) -> list[tuple[str, str]]:
    found = [
        ("rebasin", report.rebasin),
        ("command", report.command),
        ("seed", str(report.seed)),
        ("data", str(report.data.get("name", ""))),
        ("spec", str(report.spec.get("name", ""))),
        ("method", str(report.match.get("method", ""))),
        ("proof", str(report.proof.get("status", ""))),
        ("proof network", str(report.proof.get("network", ""))),
        ("shipped", next((row.name for row in report.rows if row.shipped), "")),
    ]
    for row in report.rows:
        for split in splits(report):
            values = zip(KEYS, figures(row, split), strict=True)
            found += [(f"{row.name}:{split}:{key}", value) for key, value in values if value != "—"]
    return found
