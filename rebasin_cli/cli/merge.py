"""`rebasin merge`: one model from two or many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import output_of, result, screen, settings_of


@app.command(rich_help_panel="Align and merge")
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
    new_bias: o.NewBias = False,
    bake_temperature: o.BakeTemperature = False,
    spec: o.Spec = None,
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
    net: o.Net = None,
    trust_code: o.TrustCode = False,
    input: o.Input = None,
    output: o.OutputKey = None,
    data: o.Data = None,
    data_root: o.DataRoot = None,
    normalize: o.Normalize = None,
    limit: o.Limit = None,
    batch_size: o.BatchSize = 500,
    device: o.Device = "auto",
    seed: o.Seed = 0,
    max_sweeps: o.MaxSweeps = None,
    effort: o.Effort = None,
    memory: o.Memory = None,
    cost: o.Cost = None,
    at: o.At = None,
    sites: o.Sites = None,
    mix: o.Mix = None,
    loss: o.Loss = None,
    epochs: o.Epochs = None,
    optimizer: o.Optimizer = None,
    learning_rate: o.LearningRate = None,
    share: o.Share = None,
    init: o.Init = None,
    precision: o.Precision = None,
    mixture: o.Mixture = None,
    parameter: o.Parameter = None,
    weights_prior: o.WeightsPrior = None,
    checkpoint_every: o.CheckpointEvery = None,
    log: o.Log = None,
    no_prove: o.NoProve = False,
    force: o.Force = False,
    out_dtype: o.OutDtype = None,
    out_shard_size: o.OutShardSize = None,
    resume: o.Resume = False,
    dry_run: o.DryRun = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Align models to the first (or to one another: --method merge-many, universe) and average them.

    Networks with BatchNorm need data: their running statistics are re-estimated on training samples.
    Others may gain from repair, which gives every channel the mean and spread of the endpoints': with data
    and a known network, --repair auto measures both on held-out training samples and takes the better.

    With data, --method ste-mm learns the permutations of all models together, by the loss of their mixtures,
    which takes longest; statistics are then re-estimated on one epoch.

    Example: rebasin merge a.pt b.pt c.pt --method merge-many -o merged.safetensors
    """
    options = dict(locals())
    from .. import pipeline
    from ..errors import UsageError

    settings = settings_of(options)
    try:
        numbers = [float(part) for part in weights.split(",")] if weights else None
    except ValueError:
        raise UsageError(
            f"--weights {weights!r} are not numbers", hint="Write them like 0.5,0.3,0.2"
        ) from None
    written = output_of(out, force, out_dtype, out_shard_size, resume=resume, dry_run=dry_run)
    with screen(quiet, verbose) as listener:
        done = pipeline.merge(
            models,
            written,
            settings,
            listener,
            reference=reference,
            weights=numbers,
            interpolation=interpolation,
            perm=perm,
        )
    result(done, json)
