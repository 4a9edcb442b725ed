"""`rebasin doctor`: what to expect of merging two models, before hours are spent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app, together
from ._settings import command_line, settings_of
from ._show import result, screen


@together
@app.command(rich_help_panel="Measure")
@g.shared(g.LOADING, g.NETWORK, g.KEPT, g.DATA, g.SAMPLES, g.SCREEN)
def doctor(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(metavar="A")],
    b: Annotated[Path, typer.Argument(metavar="B")],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it as one HTML file.")
    ] = None,
    json: o.Json = False,
    force: o.Force = False,
    **options: Any,
) -> None:
    """Look at two models before hours are spent: kin or strangers, and what a merge will need.

    Ends with a verdict and the command to run next. It is advice: the exit code is 0 whatever it says.
    Without data, or a network to run, it says what it could not look at.

    Example: rebasin doctor a.pt b.pt --data cifar10
    """
    from ..commands.doctor import Page
    from ..commands.doctor import doctor as run

    first = os.environ.get("RANK", "0") in ("", "0")  # processes that run together are alike
    page = None if html is None or not first else Page(html, force, command_line(context))
    settings = settings_of(options, "loading", "network", "data")
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(a, b, listener, page=page, **settings)
    if json:
        result(done, True)
        return
    from ..reports.doctor import document
    from ..reports.formats import terminal

    terminal.show(document(done))
