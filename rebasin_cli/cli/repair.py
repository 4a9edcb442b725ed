"""`rebasin repair`: mend a merged checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._show import output_of, result, screen, settings_of


@app.command(rich_help_panel="Align and merge")
@g.shared(g.LOADING, g.NETWORK, g.DATA, g.WRITTEN, g.TOLD)
def repair(
    model: Annotated[Path, typer.Argument(metavar="FILE", help="What was merged of A and B.")],
    endpoints: Annotated[
        tuple[Path, Path],
        typer.Option("--endpoints", metavar="A B", help="The two models, B aligned to A (or with --perm)."),
    ],
    out: o.Out = None,
    share: Annotated[
        float, typer.Option("--lambda", metavar="λ", help="Where FILE lies between A (0) and B (1).")
    ] = 0.5,
    repair: o.Repair = "repair",
    new_bias: o.NewBias = False,
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
    from ..commands import repair
    from ..commands.outputs import default_path

    written = output_of(out or default_path(model, "repaired"), options)
    with screen(options["quiet"], options["verbose"]) as listener:
        done = repair.repair(
            model,
            endpoints,
            written,
            settings_of(options, repair=repair, new_bias=new_bias, bake_temperature=bake_temperature),
            listener,
            share=share,
            perm=perm,
        )
    result(done, json)
