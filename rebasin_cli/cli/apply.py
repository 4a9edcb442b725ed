"""`rebasin apply`: permute a checkpoint by a saved permutation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import output_of, result, screen


@app.command(rich_help_panel="Align and merge")
def apply(
    perm: Annotated[
        Path, typer.Argument(metavar="PERM", help="A *.perm.safetensors that align or verify wrote.")
    ],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A checkpoint of the same architecture.")],
    out: o.Out = None,
    invert: Annotated[bool, typer.Option("--invert", help="Undo the permutation instead.")] = False,
    spec: o.Spec = None,
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
    force: o.Force = False,
    out_dtype: o.OutDtype = None,
    out_shard_size: o.OutShardSize = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Permute another checkpoint of the same architecture: EMA weights, optimizer moments by name.

    Example: rebasin apply b_aligned.perm.safetensors b.pt --key ema -o b_ema_aligned.safetensors
    """
    from .. import relabel
    from ..outputs import default_path
    from ..settings import Settings

    output = output_of(out or default_path(model, "permuted"), force, out_dtype, out_shard_size)
    settings = Settings(spec=spec, key=key, unsafe_load=unsafe_load)
    with screen(quiet) as listener:
        done = relabel.apply(perm, model, output, settings, listener, invert=invert)
    result(done, json)
