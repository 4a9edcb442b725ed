"""`rebasin compare`: how good is the merge of many models?"""

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
def compare(
    context: typer.Context,
    models: Annotated[
        list[Path], typer.Argument(metavar="A B C …", help="Two models or more; the first is the reference.")
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", "-m", help=f"How to match: {o.METHODS}, or none; repeatable (wm).", show_default=False
        ),
    ] = None,
    points: Annotated[
        int, typer.Option("--points", min=0, max=o.MOST, help="Random points of the simplex to measure at.")
    ] = 10,
    once: Annotated[
        bool,
        typer.Option("--once", help="Match all models once, not the first 2, 3 … anew (methods for many)."),
    ] = False,
    without_reference: Annotated[
        bool,
        typer.Option(
            "--without-reference",
            help="Also measure the means without the first, which the others are matched to.",
        ),
    ] = False,
    sharpness: Annotated[
        bool, typer.Option("--sharpness", help="Also estimate tr(H ⊙ θθᵀ) of the models and every merge.")
    ] = False,
    probes: Annotated[
        int, typer.Option("--probes", min=2, max=o.MOST, help="Random signs for --sharpness.")
    ] = 10,
    repair: Annotated[
        str, typer.Option("--repair", help="auto, none or reset (re-estimate BatchNorm statistics).")
    ] = "auto",
    full: Annotated[bool, typer.Option("--full", help="All training samples, also for the reset.")] = False,
    report: Annotated[
        Path | None,
        o.report("--report", metavar="DIR", help="Write HTML, Markdown, JSON and a PNG into this folder."),
    ] = None,
    json: Annotated[bool, o.report("--json", help="Print the comparison as JSON.")] = False,
    json_file: o.JsonFile = None,
    markdown: Annotated[
        Path | None, o.report("--markdown", metavar="FILE", help="Write the comparison as Markdown.")
    ] = None,
    html: o.Html = None,
    no_prove: o.NoProve = False,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    **options: Any,
) -> None:
    """Measure merges of the first 2, 3 … models, between pairs and anywhere in their simplex.

    With distances and angles beside those of unrelated points, and whether permutations of single pairs fit
    together.

    Example: rebasin compare a.pt b.pt c.pt --method wm --method merge-many --data mnist --report many/
    """
    from ..commands.compare import Scope
    from ..commands.compare import compare as run

    methods = method or ["wm"]
    own = {"method": methods, "repair": repair, "full": full, "no_prove": no_prove}
    settings = settings_of(options, "loading", "network", "data", "search", "repair", **own)
    files = {"file_json": json_file, "file_markdown": markdown, "file_html": html}
    written = report_of(context, report, files, force=force, dry_run=dry_run)
    scope = Scope(points, once, sharpness, probes, without_reference)
    with screen(options["quiet"], options["verbose"]) as listener:
        found = run(models, methods, written, listener, scope=scope, **settings)
    if isinstance(found, dict):  # the plan
        result(found, json)
        return
    from ..analysis import formats
    from ..reports.formats import terminal

    if json:
        typer.echo(formats.RENDER["json"](found), nl=False)
    else:
        terminal.show(formats.document(found))
