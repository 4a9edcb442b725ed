"""`rebasin repair`: mend a merged checkpoint."""

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
@g.shared(g.LOADING, g.NETWORK, g.KEPT, g.DATA, g.CHOOSING, g.REPAIR, g.WRITTEN, g.SCREEN)
def repair(
    model: Annotated[Path, typer.Argument(metavar="FILE", help="What was merged of A and B.")],
    endpoints: Annotated[
        tuple[Path, Path],
        typer.Option("--endpoints", metavar="A B", help="The two models, B aligned to A (or with --perm)."),
    ],
    out: o.OutModel = None,
    share: Annotated[
        float, typer.Option("--lambda", metavar="λ", help="Where FILE lies between A (0) and B (1).")
    ] = 0.5,
    repair: o.Repair = "repair",
    limit: o.Limit = None,
    bake_temperature: o.BakeTemperature = False,
    perm: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The permutation of B that FILE was merged with.")
    ] = None,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Repair a checkpoint that was merged already: match its channels to those of its endpoints.

    Networks with BatchNorm get their running statistics re-estimated instead (reset). With --repair auto a
    model that no repair makes better, on held-out training samples, is written as it is.

    Example: rebasin repair merged.safetensors --endpoints a.pt b_aligned.safetensors --data cifar10
    """
    from ..commands.repair import repair as run
    from ..commands.verbs.outputs import default_path

    own = {"repair": repair, "limit": limit, "bake_temperature": bake_temperature}
    settings = settings_of(options, "loading", "network", "data", "repair", **own)
    written = output_of(out or default_path(model, "repaired"), options)
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(model, endpoints, written, listener, share=share, perm=perm, **settings)
    result(done, json)
