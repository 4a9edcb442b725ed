"""`rebasin verify`: is one model a relabelling of another?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._settings import settings_of
from ._show import result, screen


@app.command(rich_help_panel="Measure")
@g.shared(g.LOADING, g.NETWORK, g.KEPT, g.GROUPS)
def verify(
    a: Annotated[Path, typer.Argument(metavar="A")],
    b: Annotated[Path, typer.Argument(metavar="B")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the permutation that turns B into A."),
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    **options: Any,
) -> None:
    """Is B the same network as A with its hidden units in another order? Exit code 1 unless it is.

    Values must be the same to the last bit; of a tensor in two dtypes, to the rounding of the coarser one.
    With --groups all: in another order, or signed, scaled and turned, as the network allows, and the same but
    for the rounding of each number.

    Example: rebasin verify b.pt b_aligned.safetensors
    """
    from ..commands.verify import verify as run

    settings = settings_of(options, "loading", "network")
    with screen(quiet) as listener:
        done = run(a, b, listener, groups=options["groups"], output=out, force=force, **settings)
    result(done, json)
    if done["answer"] != "yes":
        raise typer.Exit(1)
