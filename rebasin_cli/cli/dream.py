"""`rebasin dream`: images that models imagine, where no data are to be had."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._settings import settings_of
from ._show import result, screen


@app.command(rich_help_panel="Align and merge")
@g.shared(g.LOADING, g.NETWORK, g.SCREEN)
def dream(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL…", help="Of one architecture; all see each image.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The images.")] = Path(
        "dreams.npz"
    ),
    images: Annotated[int, typer.Option(min=1, help="A tenth as many more are for testing.")] = 1_000,
    steps: Annotated[int, typer.Option(min=1, help="Of each image towards its class.")] = 30,
    pixels: Annotated[
        str | None,
        typer.Option(
            metavar="MEAN/STD",
            show_default=False,
            help="Of the inputs as the models get them, one each or one a channel; else those of the data "
            "set that the models record, or 0/1.",
        ),
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Make images that all models see as a class, for methods that look at data where there are none.

    What is made is a data set for every command: --data npz:FILE. It shows how units work together; what a
    model is worth is told by real data alone.

    Example: rebasin dream a.safetensors b.safetensors -o dreams.npz
    """
    from ..commands.dream import dream as run

    settings = settings_of(options, "loading", "network")
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(models, out, listener, count=images, steps=steps, pixels=pixels, force=force, **settings)
    result(done, json)
