"""`rebasin demo`: the whole story on data that is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import put, screen


@app.command(rich_help_panel="Make models")
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Where everything is written.")
    ] = Path("rebasin-demo"),
    force: o.Force = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train two MLPs on digits from different seeds, align, merge and measure them. Under a minute."""
    from ..commands.demo import demo as run
    from . import reports

    with screen(quiet, verbose) as listener:
        report, commands = run(out, listener, force=force)
    reports.whole(report)
    typer.echo()
    put(f"The report is in {out / 'report'}: open {out / 'report' / 'report.html'}")
    put("Try next:")
    for command in commands:
        put(f"  {command}")
