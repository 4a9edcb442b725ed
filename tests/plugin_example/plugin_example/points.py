"""Every measured point, one a line, as CSV."""

from __future__ import annotations

from rebasin_cli.reports import Report

FILENAME = "points.csv"
HELP = "Write every measured point as CSV."


def render(report: Report) -> str:
    lines = ["row,split,lambda,loss"]
    for row in report.rows:
        for split, curve in row.curves.items():
            points = zip(curve.lambdas, curve.loss, strict=True)
            lines += [f"{row.name},{split},{t},{loss}" for t, loss in points]
    return "\n".join(lines) + "\n"
