"""Every measured point, one a line, as CSV."""

import csv
import io

from rebasin_cli.reports import Report

FILENAME = "points.csv"


def render(report: Report) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["row", "split", "lambda", "loss", *(metric.key for metric in report.metrics)])
    for row in report.rows:
        for split, curve in row.curves.items():
            for point in zip(curve.lambdas, *curve.figures.values(), strict=True):
                table.writerow([row.name, split, *point])
    return out.getvalue()
