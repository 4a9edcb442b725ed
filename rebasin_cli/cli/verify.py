"""`rebasin verify`: is one model a relabelling of another?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import result, screen


@app.command(rich_help_panel="Measure")
def verify(
    a: Annotated[Path, typer.Argument(metavar="A")],
    b: Annotated[Path, typer.Argument(metavar="B")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the permutation that turns B into A."),
    ] = None,
    spec: o.Spec = None,
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
    seed: o.Seed = 0,
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Is B the same network as A with its hidden units in another order? Exit code 1 unless it is.

    Example: rebasin verify b.pt b_aligned.safetensors
    """
    from ..commands.job.settings import Loading
    from ..commands.verify import verify as run

    loading = Loading(spec, key, unsafe_load)
    with screen(quiet) as listener:
        done = run(a, b, listener, loading=loading, seed=seed, output=out, force=force)
    result(done, json)
    if done["answer"] != "yes":
        raise typer.Exit(1)
