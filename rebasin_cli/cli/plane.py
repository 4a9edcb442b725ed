"""`rebasin plane`: loss and accuracy over the plane through three models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._settings import report_of, settings_of
from ._show import result, screen


@app.command(rich_help_panel="Measure")
@g.shared(g.LOADING, g.NETWORK, g.KEPT, g.DATA, g.SAMPLES, g.SCORES, g.METHOD, g.SCREEN)
def plane(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(metavar="A", help="The first model; (0, 0) in the plane.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The second one.")],
    c: Annotated[
        Path | None,
        typer.Argument(
            metavar="[C]",
            help="The third one; else the control point of the curve, or B once it is aligned to A.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            show_default=False,
            help=f"How B is aligned: {o.METHODS} (wm where nothing else is a third model).",
        ),
    ] = None,
    perm: Annotated[Path | None, typer.Option(metavar="FILE", help="Use this permutation of B.")] = None,
    curve: Annotated[
        list[Path] | None,
        typer.Option(
            "--curve",
            metavar="FILE",
            show_default=False,
            help="Draw this trained curve from A to B (rebasin curve); repeatable. The first one's control "
            "point is the third model.",
        ),
    ] = None,
    points: Annotated[
        int, typer.Option("--points", metavar="N", min=3, max=999, help="Points in each direction.")
    ] = 25,
    split: Annotated[
        str, typer.Option("--split", help="test or train: whose samples are measured on.")
    ] = "test",
    full: Annotated[
        bool, typer.Option("--full", help="All samples of the split; else 1,000, or as --limit says.")
    ] = False,
    report: Annotated[
        Path | None, o.report("--report", metavar="DIR", help="Write HTML, JSON and a PNG into this folder.")
    ] = None,
    json: Annotated[bool, o.report("--json", help="Print the figures as JSON.")] = False,
    plot: Annotated[Path | None, o.report("--plot", metavar="FILE", help="Draw the plane, as PNG.")] = None,
    html: o.Html = None,
    json_file: o.JsonFile = None,
    no_prove: o.NoProve = False,
    resume: o.Resume = False,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    **options: Any,
) -> None:
    """Draw loss and accuracy over the plane through three models, and the paths between them.

    Distances in the picture are distances between weights. With BatchNorm, statistics are measured anew at
    every point. After Ctrl-C, --resume goes on with a plane that is written.

    Example: rebasin plane a.pt b.pt --data mnist --report plane/
    """
    from ..commands.plane import Grid
    from ..commands.plane import plane as run

    method = method or ("none" if c is not None or curve or perm else "wm")
    own = {"method": method, "full": full, "no_prove": no_prove}
    settings = settings_of(options, "loading", "network", "data", "search", **own)
    files = {"file_png": plot, "file_html": html, "file_json": json_file}
    written = report_of(context, report, files, force=force, dry_run=dry_run, resume=resume)
    paths = [a, b, *([c] if c is not None else [])]
    with screen(options["quiet"], options["verbose"]) as listener:
        found = run(
            paths, written, listener, grid=Grid(points, split), perm=perm, curves=curve or (), **settings
        )
    if json or dry_run:
        result(found, json)
        return
    from ..reports.formats import terminal
    from ..reports.plane import document

    terminal.show(document(found))
