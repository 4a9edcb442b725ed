"""`rebasin merge-driver`: a three-way merge of a checkpoint, for git."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._show import result, screen


@app.command(rich_help_panel="Align and merge")
@g.shared(g.SCREEN)
def merge_driver(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="%O: the common ancestor; empty for none.")],
    ours: Annotated[Path, typer.Argument(metavar="OURS", help="%A: ours, which becomes the result.")],
    theirs: Annotated[Path, typer.Argument(metavar="THEIRS", help="%B: theirs.")],
    marker: Annotated[
        str | None, typer.Argument(metavar="MARKER", help="%L: the size of conflict markers; not used.")
    ] = None,
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="%P: the file's name in git.")] = None,
    both: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="What both changed: average, sum (both changes in full), ours, theirs or conflict; average "
            "if left out, conflict without an ancestor.",
        ),
    ] = None,
    repair: Annotated[
        str,
        typer.Option(metavar="auto|none", help="none mixes running statistics; else that is a conflict."),
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write here instead of to OURS.")
    ] = None,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Three-way merge of a checkpoint in git: what one side changed is taken, what both changed is mixed.

    Exits with 1 where there is a conflict, and leaves OURS as it is. docs/git.md tells how to set it up.

    Example: rebasin merge-driver base.safetensors ours.safetensors theirs.safetensors -o merged.safetensors
    """
    from ..commands.merge_driver import merge_driver as run
    from ..errors import UsageError

    if repair not in ("auto", "none"):
        raise UsageError(f"--repair {repair}: a merge in git has no data", hint="Choose auto or none")
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(base, ours, theirs, listener, path=path, both=both, repair=repair, output=out)
    result(done, json)
