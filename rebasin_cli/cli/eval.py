"""`rebasin eval`: loss, accuracy and calibration of one checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._settings import settings_of
from ._show import result, screen


@app.command(rich_help_panel="Measure")
@g.shared(g.LOADING, g.NETWORK, g.DATA, g.SAMPLES, g.CHOOSING, g.SCORES, g.BINS, g.SCREEN)
def eval(
    model: Annotated[Path, typer.Argument(metavar="MODEL")],
    split: Annotated[str, typer.Option(help="test or train.")] = "test",
    json: o.Json = False,
    **options: Any,
) -> None:
    """Measure loss (nats), accuracy (0–1) and expected calibration error (0–1); with --json its bins, too.

    Example: rebasin eval merged.safetensors --data cifar10
    """
    from ..commands.eval import evaluate

    settings = settings_of(options, "loading", "network", "data")
    with screen(options["quiet"], options["verbose"]) as listener:
        done = evaluate(model, listener, split=split, **settings)
    result(done, True) if json else show(done)


def show(done: Mapping[str, Any]) -> None:
    """All but the bins, which are for --json."""
    result({name: told for name, told in done.items() if name != "reliability"}, False)
