"""`rebasin card`: the model card of a merged model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._settings import settings_of
from ._show import result, screen


@app.command(rich_help_panel="Look")
@g.shared(g.LOADING, g.NETWORK, g.DATA, g.SAMPLES, g.SCREEN)
def card(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What rebasin merge wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The card.")] = Path("README.md"),
    base_model: Annotated[
        list[str] | None,
        typer.Option(
            "--base-model",
            metavar="NAME",
            show_default=False,
            help="A parent, as the hub calls it (org/name); repeatable.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The model's name; else its file's.")] = None,
    license: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="As the hub calls it, such as apache-2.0.")
    ] = None,
    library: Annotated[
        str | None, typer.Option("--library", metavar="NAME", help="What loads it, such as transformers.")
    ] = None,
    barrier: Annotated[
        Path | None,
        typer.Option("--barrier", metavar="FILE", help="The report.json of rebasin barrier on its parents."),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="FILE", help="The recipe that made it, to be shown.")
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Write the model card of a merged model, for its page on the Hugging Face hub.

    With --data the model is measured, and its results stand in the card's metadata.

    Example: rebasin card merged.safetensors --base-model org/a --base-model org/b --data cifar10
    """
    from ..commands.card import About
    from ..commands.card import card as run

    settings = settings_of(options, "loading", "network", "data")
    about = About(name or "", tuple(base_model or ()), license, library)
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(model, out, about, listener, report=barrier, recipe=recipe, force=force, **settings)
    result(done, json)
