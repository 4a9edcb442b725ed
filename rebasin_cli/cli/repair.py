"""`rebasin repair`: mend a merged checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import output_of, result, screen, settings_of


@app.command(rich_help_panel="Align and merge")
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
    spec: o.Spec = None,
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
    net: o.Net = None,
    trust_code: o.TrustCode = False,
    input: o.Input = None,
    data: o.Data = None,
    data_root: o.DataRoot = None,
    normalize: o.Normalize = None,
    device: o.Device = "auto",
    seed: o.Seed = 0,
    force: o.Force = False,
    out_dtype: o.OutDtype = None,
    out_shard_size: o.OutShardSize = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Repair a checkpoint that was merged already: match its channels to those of its endpoints.

    Networks with BatchNorm get their running statistics re-estimated instead (reset). With --repair auto a
    model that no repair makes better, on held-out training samples, is written as it is.

    Example: rebasin repair merged.safetensors --endpoints a.pt b_aligned.safetensors --data cifar10
    """
    options = dict(locals())
    from .. import repairing
    from ..outputs import default_path

    written = output_of(out or default_path(model, "repaired"), force, out_dtype, out_shard_size)
    with screen(quiet, verbose) as listener:
        done = repairing.repair(
            model, endpoints, written, settings_of(options), listener, share=share, perm=perm
        )
    result(done, json)
