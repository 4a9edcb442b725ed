"""`rebasin align`: permute one model into another's basin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app, together
from ._settings import output_of, settings_of
from ._show import result, screen


@together
@app.command(rich_help_panel="Align and merge")
@g.shared(
    g.LOADING,
    g.NETWORK,
    g.KEPT,
    g.DATA,
    g.SAMPLES,
    g.METHOD,
    g.GROUPS,
    g.POLISHING,
    g.RESUMABLE,
    g.WRITTEN,
    g.SCREEN,
)
def align(
    reference: Annotated[Path, typer.Argument(metavar="A", help="The model that stays.")],
    model: Annotated[Path, typer.Argument(metavar="B", help="The model that is permuted.")],
    out: o.OutModel = None,
    method: o.Method = "wm",
    loss: o.Loss = None,
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
    from ..commands.align import align as run
    from ..commands.verbs.outputs import default_path
    from ..runtime import devices
    from ..runtime.together import from_environment

    own = {"method": method, "loss": loss, "no_prove": no_prove}
    settings = settings_of(options, "loading", "network", "data", "search", **own)
    out = out or default_path(model, "aligned")
    written = output_of(out, options, dry_run=dry_run)
    with from_environment(devices.choose(options["device"])) as ranks:
        first = ranks.rank == 0
        with screen(options["quiet"] or not first, options["verbose"]) as listener:
            done = run(reference, model, written, listener, ranks=ranks, **settings)
    if first:
        result(done, json)
