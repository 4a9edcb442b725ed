"""`rebasin eval`: loss, accuracy and calibration of one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import result, screen, settings_of


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
    options = dict(locals())
    from .. import reporting

    settings = settings_of(options)
    with screen(quiet) as listener:
        done = reporting.evaluate(model, settings, listener, split=split)
    result(done, json)
