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
@g.shared(
    g.LOADING,
    g.NETWORK,
    g.KEPT,
    g.DATA,
    g.SAMPLES,
    g.CHOOSING,
    g.METHOD,
    g.GROUPS,
    g.POLISHING,
    g.REPAIR,
    g.RESUMABLE,
    g.WRITTEN,
    g.SCREEN,
)
def merge(
    models: Annotated[
        list[Path], typer.Argument(metavar="A B …", help="Two models or more; the first is the reference.")
    ],
    out: Annotated[
        str,
        o.option(
            "--out",
            "-o",
            metavar="FILE|DIR/",
            panel=o.OUT,
            help="Where to write, as safetensors; into a folder in the shards of the first model.",
            show_default=True,
        ),
    ] = "merged.safetensors",
    method: o.BestMethod = None,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Which of the models the others are aligned to; else the first."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="W,W,…|NAME",
            help="One weight a model, adding up to 1, such as 1/3,1/3,1/3; equal if left out (uniform). "
            "Negative ones, too: 1,0.8,-0.8 adds to A 0.8 of what B has beyond C. Of a run's checkpoints, "
            "ordered by their steps, what a decay would have left: linear, cosine, minus-sqrt.",
        ),
    ] = None,
    interpolation: o.Interpolation = "linear",
    perm: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use this permutation for the second of two models.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Copy these tensors instead of averaging them; may be repeated."),
    ] = None,
    copy_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Whose integers and ignored tensors are copied; else the first's."),
    ] = None,
    copy_files: Annotated[
        bool, typer.Option("--copy-files", help="Copy configuration and tokenizer, too, into -o DIR/.")
    ] = False,
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Of two models with other numbers of classes: keep-a, keep-b, average (those that both "
            "have), concat or drop.",
        ),
    ] = None,
    extra: Annotated[
        str, typer.Option(metavar="HOW", help="Tensors that not all have: error, keep-a, keep or drop.")
    ] = "error",
    soup: Annotated[
        str | None,
        typer.Option(
            metavar="greedy",
            help="Average only models by which the loss on test samples falls.",
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a point of this trained curve between A and B (--at)."),
    ] = None,
    at: Annotated[
        float | None, typer.Option("--at", metavar="0–1", help="Which point of the curve; A is at 0.")
    ] = None,
    repair: o.Repair = "auto",
    bake_temperature: o.BakeTemperature = False,
    loss: o.Loss = None,
    skip_checks: o.SkipChecks = False,
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
    from ..averages.weights import parse
    from ..commands.merge import merge as run
    from ..commands.merging.average import Average

    own = {"method": method, "loss": loss, "no_prove": no_prove, "skip_checks": skip_checks}
    own |= {"repair": repair, "bake_temperature": bake_temperature}
    settings = settings_of(options, "loading", "network", "data", "search", "repair", **own)
    written = output_of(out, options, dry_run=dry_run)
    mean = Average(
        reference=reference,
        weights=parse(weights),
        interpolation=interpolation,
        perm=perm,
        ignore=tuple(ignore or ()),
        copy_from=copy_from,
        copy_files=copy_files,
        heads=heads,
        extra=extra,
        soup=soup,
        curve=curve,
        at=at,
    )
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(models, written, listener, mean=mean, **settings)
    result(done, json)
