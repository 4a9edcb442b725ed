"""`rebasin merge`: one model from two or many."""

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
@g.shared(g.LOADING, g.NETWORK, g.DATA, g.SAMPLES, g.METHOD, g.REPAIR, g.RESUMABLE, g.WRITTEN, g.SCREEN)
def merge(
    models: Annotated[
        list[Path], typer.Argument(metavar="A B …", help="Two models or more; the first is the reference.")
    ],
    out: o.Out = Path("merged.safetensors"),
    method: o.Method = "wm",
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Which of the models the others are aligned to; else the first."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="W,W,…", help="One weight a model, adding up to 1; equal if left out."),
    ] = None,
    interpolation: Annotated[str, typer.Option(help="linear, or slerp for two models.")] = "linear",
    perm: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use this permutation for the second of two models.")
    ] = None,
    repair: o.Repair = "auto",
    bake_temperature: o.BakeTemperature = False,
    loss: o.Loss = None,
    no_prove: o.NoProve = False,
    dry_run: o.DryRun = False,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Align models to the first (or to one another: --method merge-many, universe) and average them.

    Networks with BatchNorm need data: their running statistics are re-estimated on training samples.
    Others may gain from repair, which gives every channel the mean and spread of the endpoints': with data
    and a known network, --repair auto measures both on held-out training samples and takes the better.

    With data, --method ste-mm learns the permutations of all models together, by the loss of their mixtures,
    which takes longest; statistics are then re-estimated on one epoch.

    Example: rebasin merge a.pt b.pt c.pt --method merge-many -o merged.safetensors
    """
    from ..commands.job.averaging import Average
    from ..commands.merge import merge as run
    from ..errors import UsageError

    own = {"method": method, "loss": loss, "no_prove": no_prove}
    own |= {"repair": repair, "bake_temperature": bake_temperature}
    settings = settings_of(options, "loading", "network", "data", "search", "repair", **own)
    try:
        numbers = [float(part) for part in weights.split(",")] if weights else None
    except ValueError:
        raise UsageError(
            f"--weights {weights!r} are not numbers", hint="Write them like 0.5,0.3,0.2"
        ) from None
    written = output_of(out, options, dry_run=dry_run)
    with screen(options["quiet"], options["verbose"]) as listener:
        mean = Average(reference, numbers, interpolation, perm)
        done = run(models, written, listener, mean=mean, **settings)
    result(done, json)
