"""`rebasin align`: permute one model into another's basin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._show import output_of, result, screen, settings_of


@app.command(rich_help_panel="Align and merge")
@g.shared(g.LOADING, g.NETWORK, g.DATA, g.SAMPLES, g.SEARCH, g.STRAIGHT_THROUGH, g.KEPT, g.WRITTEN, g.TOLD)
def align(
    reference: Annotated[Path, typer.Argument(metavar="A", help="The model that stays.")],
    model: Annotated[Path, typer.Argument(metavar="B", help="The model that is permuted.")],
    out: o.Out = None,
    method: o.Method = "wm",
    loss: o.Loss = None,
    bound: o.Bound = False,
    no_prove: o.NoProve = False,
    dry_run: o.DryRun = False,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Permute B's hidden units into A's basin; B's function stays the same.

    Writes B_aligned.safetensors (or --out), and the permutation beside it as *.perm.safetensors.

    Many processes search together, on one machine or more: torchrun … -m rebasin_cli align …

    Example: rebasin align a.pt b.pt --method wm -o b_aligned.safetensors
    """
    from ..commands import pipeline
    from ..commands.outputs import default_path
    from ..runtime import devices, together

    settings = settings_of(options, method=method, loss=loss, bound=bound, no_prove=no_prove)
    out = out or default_path(model, "aligned")
    written = output_of(out, options, dry_run=dry_run)
    with together.from_environment(devices.choose(options["device"])) as ranks:
        first = ranks.rank == 0
        with screen(options["quiet"] or not first, options["verbose"]) as listener:
            done = pipeline.align(reference, model, written, settings, listener, ranks=ranks)
    if first:
        result(done, json)
