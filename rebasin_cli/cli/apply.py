"""`rebasin apply`: permute a checkpoint by a saved permutation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._settings import output_of, settings_of
from ._show import result, screen


@app.command(rich_help_panel="Align and merge")
@g.shared(g.LOADING, g.WRITTEN, g.SCREEN)
def apply(
    perm: Annotated[
        Path, typer.Argument(metavar="PERM", help="A *.perm.safetensors that align or verify wrote.")
    ],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A checkpoint of the same architecture.")],
    out: o.OutModel = None,
    invert: Annotated[bool, typer.Option("--invert", help="Undo the permutation instead.")] = False,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Permute another checkpoint of the same architecture: EMA weights, optimizer moments by name.

    Elements of groups (--groups all) are for weights alone: folded and turned, moments would mean nothing.

    Example: rebasin apply b_aligned.perm.safetensors b.pt --key ema -o b_ema_aligned.safetensors
    """
    from ..commands.apply import apply as run
    from ..commands.verbs.outputs import default_path

    output = output_of(out or default_path(model, "permuted"), options)
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(perm, model, output, listener, invert=invert, **settings_of(options, "loading"))
    result(done, json)
