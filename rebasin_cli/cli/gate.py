"""`rebasin gate`: is a report that was stored good enough?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._gating import end, gates_of
from ._settings import report_of
from ._show import screen
from .barrier import show_brief, show_report


@app.command(rich_help_panel="Measure")
@g.shared(g.GATES, g.JUDGING, g.FORMATS)
def gate(
    context: typer.Context,
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report.json of rebasin barrier.")],
    json: Annotated[bool, o.report("--json", help="Print the report as JSON.")] = False,
    step_summary: o.StepSummary = None,
    **options: Any,
) -> None:
    """Hold a stored report against gates, without measuring anything. Exit code 1 where one is not met.

    Its gates take the place of those that the report had.

    Example: rebasin gate report/report.json --max-barrier 0.05 --baseline baseline.json
    """
    from ..commands.gate import gate as run
    from ..reports import _github

    gates, baseline, quiet = gates_of(options), options["baseline"], options["quiet"]
    more = {"summary": _github.step_summary(step_summary), "reads": [baseline] if baseline else []}
    written = report_of(context, None, options, force=options["force"], **more)
    with screen(quiet) as listener:
        made = run(report, written, listener, gates=gates)
    if json:
        show_report(made, as_json=True, quiet=quiet)
    else:
        show_brief(made)
    end(made, baseline)
