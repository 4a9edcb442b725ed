"""`rebasin canon`: a checkpoint in canonical form."""

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
@g.shared(g.LOADING, g.NETWORK, g.KEPT, g.DATA, g.WRITTEN, g.SCREEN)
def canon(
    model: Annotated[Path, typer.Argument(metavar="FILE", help="The model; its function stays the same.")],
    out: o.OutModel = None,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Fold gains and biases of norms into the layers that read them, and balance what may be scaled.

    Key biases become 0, value biases go through the output matrix, what writes to a LayerNorm stream loses
    its mean; the two sides of every product through invertible or scaled units get the same norms. In this
    form --groups all compares models. Each step holds by the network's graph, and the outputs are compared
    in float64 before anything is written.

    Example: rebasin canon vit.safetensors --net net.py:vit -o vit_canon.safetensors
    """
    from ..commands.canon import canon as run
    from ..commands.verbs.outputs import default_path

    settings = settings_of(options, "loading", "network", "data")
    written = output_of(out or default_path(model, "canon"), options)
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(model, written, listener, **settings)
    result(done, json)
