"""`rebasin eval`: loss, accuracy and calibration of one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import result, screen


@app.command(rich_help_panel="Measure")
def eval(
    model: Annotated[Path, typer.Argument(metavar="MODEL")],
    split: Annotated[str, typer.Option(help="test or train.")] = "test",
    spec: o.Spec = None,
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
    net: o.Net = None,
    trust_code: o.TrustCode = False,
    data: o.Data = None,
    data_root: o.DataRoot = None,
    normalize: o.Normalize = None,
    limit: o.Limit = None,
    batch_size: o.BatchSize = 500,
    loss: o.Loss = None,
    metric: o.Metric = None,
    output: o.OutputKey = None,
    skip_checks: o.SkipChecks = False,
    device: o.Device = "auto",
    seed: o.Seed = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure loss (nats), accuracy (0–1) and expected calibration error (0–1, 15 bins).

    Example: rebasin eval merged.safetensors --data cifar10
    """
    from .. import pipeline
    from ..intake import Settings

    settings = Settings(
        spec=spec,
        net=net,
        trust_code=trust_code,
        key=key,
        unsafe_load=unsafe_load,
        data=data,
        data_root=data_root,
        normalize=normalize,
        limit=limit,
        batch_size=batch_size,
        loss=loss,
        metric=metric,
        output=output,
        skip_checks=skip_checks,
        device=device,
        seed=seed,
    )
    with screen(quiet) as listener:
        done = pipeline.evaluate(model, settings, listener, split=split)
    result(done, json)
