"""`rebasin align`: permute one model into another's basin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import output_of, result, screen, settings_of


@app.command(rich_help_panel="Align and merge")
def align(
    reference: Annotated[Path, typer.Argument(metavar="A", help="The model that stays.")],
    model: Annotated[Path, typer.Argument(metavar="B", help="The model that is permuted.")],
    out: o.Out = None,
    method: o.Method = "wm",
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
    checkpoint_every: o.CheckpointEvery = None,
    log: o.Log = None,
    bound: o.Bound = False,
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
    """Permute B's hidden units into A's basin; B's function stays the same.

    Writes B_aligned.safetensors (or --out), and the permutation beside it as *.perm.safetensors.

    Many processes search together, on one machine or more: torchrun … -m rebasin_cli align …

    Example: rebasin align a.pt b.pt --method wm -o b_aligned.safetensors
    """
    options = dict(locals())
    from .. import pipeline, ranks
    from ..deciding import choose_device
    from ..outputs import default_path

    settings = settings_of(options)
    out = out or default_path(model, "aligned")
    written = output_of(out, force, out_dtype, out_shard_size, resume=resume, dry_run=dry_run)
    with ranks.from_environment(choose_device(device)) as together:
        first = together.rank == 0
        with screen(quiet or not first, verbose) as listener:
            done = pipeline.align(reference, model, written, settings, listener, ranks=together)
    if first:
        result(done, json)
