"""`rebasin train`: an endpoint from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import _training_options as t
from . import app
from ._show import result, screen


@app.command(rich_help_panel="Make models")
def train(
    net: Annotated[
        str, typer.Argument(metavar="NET", help="mlp, tinyten, resnet20, vgg16, … (`rebasin list nets`)")
    ],
    data: Annotated[
        str,
        typer.Option("--data", metavar="REF", help=f"{o.DATA_SETS} (npz:FILE, imagefolder:DIR, text:FILE)."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write, as safetensors.")],
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=2**63 - 1, help="Of the initial weights, the order and the augmentation."
        ),
    ] = 0,
    width: Annotated[
        float | None, typer.Option(help="Units a layer (mlp, two_layer, vit, gpt) or a multiplier.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="Hidden layers of an mlp, blocks of a transformer (vit, gpt).")
    ] = None,
    norm: Annotated[
        str | None, typer.Option(help="batch, layer, rms or none; else the architecture's own.")
    ] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Of each block of a transformer.")] = None,
    patch: Annotated[int | None, typer.Option(min=1, help="Side of a vit's patches, in pixels.")] = None,
    activation: Annotated[
        str | None, typer.Option(help="gelu or swiglu, of a transformer; relu or tanh, of an mlp.")
    ] = None,
    positions: Annotated[str | None, typer.Option(help="learned or rope, of a transformer.")] = None,
    epochs: t.Epochs = None,
    batch_size: t.TrainingBatch = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adam, adamw (decay apart from the gradient) or sgd.")
    ] = None,
    learning_rate: t.LearningRate = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="cosine, constant, late (flat for half, then down to a hundredth), halving (twelve times), "
            "or triangle (by the epoch: up from 0 for five, then down)."
        ),
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(metavar="0–1", help="The share of all steps in which the rate rises to its largest."),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(metavar="0–1", help="Of SGD: 0 is plain; else 0.9, Nesterov's.")
    ] = None,
    nesterov: Annotated[
        bool | None, typer.Option("--nesterov/--no-nesterov", help="Which momentum SGD has.")
    ] = None,
    weight_decay: t.WeightDecay = None,
    augment: t.Augment = None,
    precision: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; the faster one of this machine.")
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            help="First weights: kaiming, lecun, xavier or small (0.02), normal; torch, as its "
            "layers begin; else the network's own."
        ),
    ] = None,
    keep_every: Annotated[
        int | None,
        typer.Option(
            "--keep-every",
            metavar="N",
            min=1,
            max=1_000_000,
            help="Also write the weights of every Nth epoch, and those before the first: "
            "NAME.epoch0.safetensors …",
        ),
    ] = None,
    attack: t.Attack = None,
    normalize: o.Normalize = None,
    data_root: o.DataRoot = None,
    limit: t.TrainingLimit = None,
    subset: Annotated[
        float | None,
        typer.Option(metavar="0–1", help="Train on this share of the samples, drawn by --seed."),
    ] = None,
    classes_split: Annotated[
        str | None,
        typer.Option(
            "--classes-split",
            metavar="K:X,Y",
            help="Share out the samples: part a has the share X of those of the first K classes and Y of the "
            "others', part b all that a has not.",
        ),
    ] = None,
    part: Annotated[str | None, typer.Option(metavar="a|b", help="The part of --classes-split.")] = None,
    split_seed: Annotated[
        int | None,
        typer.Option(
            "--split-seed",
            metavar="N",
            min=0,
            max=2**63 - 1,
            help="Of --classes-split: the same for a and b (0).",
        ),
    ] = None,
    device: o.Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a training that was interrupted.")
    ] = False,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train a network on a data set; the defaults give a good endpoint.

    The file records data set, normalisation and accuracy. After Ctrl-C or SIGTERM, --resume goes on from
    the last epoch.

    Example: rebasin train mlp --data mnist --seed 1 -o mnist1.safetensors
    """
    from ..commands.train import train as run
    from ..commands.verbs.outputs import Output

    recipe = {
        "width": width,
        "depth": depth,
        "norm": norm,
        "heads": heads,
        "patch": patch,
        "activation": activation,
        "positions": positions,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "weight_decay": weight_decay,
        "augment": augment,
        "precision": precision,
        "attack": attack,
        "normalize": normalize,
        "warmup": warmup,
        "momentum": momentum,
        "nesterov": nesterov,
        "init": init,
        "root": data_root,
        "limit": limit,
        "subset": subset,
        "classes_split": classes_split,
        "part": part,
        "split_seed": split_seed,
        "keep_every": keep_every,
    }
    with screen(quiet, verbose) as listener:
        output = Output(out, force, resume=resume, dry_run=dry_run)
        done = run(net, data, output, listener, seed=seed, device=device, **recipe)
    result(done, json)
