"""`rebasin promote`: a report becomes the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import result, screen


@app.command(rich_help_panel="Measure")
def promote(
    report: Annotated[
        Path, typer.Argument(metavar="REPORT", help="A report.json of rebasin barrier whose gates were met.")
    ],
    baseline: Annotated[
        Path, typer.Argument(metavar="BASELINE", help="The file that --baseline names, there or not.")
    ],
    ungated: Annotated[
        bool, typer.Option("--ungated", help="Also a report that was held against no gate.")
    ] = False,
    skip_checks: Annotated[
        bool, typer.Option("--skip-checks", help="Also a report that was measured with --skip-checks.")
    ] = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Make a report the baseline of those that come. Exit code 1 where one of its gates was not met.

    Never in the run that is held against it. Only a report of the same data and network is replaced.

    Example: rebasin promote out/report/report.json baseline.json
    """
    from ..commands.promote import promote as run

    with screen(quiet):
        done = run(report, baseline, ungated=ungated, skip_checks=skip_checks)
    result(done, json)
