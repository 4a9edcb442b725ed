"""`rebasin curve`: a trained curve between two models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import _training_options as t
from . import app
from ._settings import settings_of
from ._show import result, screen


def _curve(*names: str, **kwargs: Any) -> Any:
    return typer.Option(*names, rich_help_panel=t.TRAINING, **kwargs)


@app.command(rich_help_panel="Align and merge")
@g.shared(g.LOADING, g.NETWORK, g.KEPT, g.DATA, g.SCREEN)
def curve(
    a: Annotated[Path, typer.Argument(metavar="A", help="One end; the reference.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other end, once it is aligned to A.")],
    out: o.Out = Path("between.curve.safetensors"),
    kind: Annotated[
        str, _curve("--kind", help="bezier, or chain: straight lines that meet at the bends.")
    ] = "bezier",
    bends: Annotated[
        int, _curve("--bends", min=1, max=100, help="Control points between the ends that are trained.")
    ] = 1,
    epochs: t.Epochs = 60,
    learning_rate: t.LearningRate = None,
    weight_decay: t.WeightDecay = 0.0,
    schedule: Annotated[
        str, _curve("--schedule", help="halving (twelve times over all epochs), cosine or constant.")
    ] = "halving",
    batch_size: t.TrainingBatch = 128,
    augment: t.Augment = None,
    limit: t.TrainingLimit = None,
    attack: t.Attack = None,
    method: Annotated[
        str,
        typer.Option(
            "--method", "-m", rich_help_panel=o.SEARCH, help=f"How B is aligned: {o.METHODS}, or none."
        ),
    ] = "wm",
    perm: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=o.SEARCH, show_default=False, help="Use this permutation of B."
        ),
    ] = None,
    loss: o.Loss = None,
    no_prove: o.NoProve = False,
    checkpoint_every: o.CheckpointEvery = None,
    log: o.Log = None,
    resume: o.Resume = False,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.Json = False,
    **options: Any,
) -> None:
    """Train a curve of low loss from A to B, where the straight line has a barrier.

    `rebasin merge A B --curve FILE --at 0.5` writes a point of it as a checkpoint. Its ends are A, and B
    with its units permuted (--method none: B as it is).

    Example: rebasin curve a.pt b.pt --data cifar10 --epochs 60 -o ab.curve.safetensors
    """
    from ..commands.curve import curve as run
    from ..commands.verbs.outputs import Output
    from ..curves.training import Training

    own = {"method": method, "loss": loss, "no_prove": no_prove, "checkpoint_every": checkpoint_every}
    own |= {"log": log, "batch_size": batch_size}
    settings = settings_of(options, "loading", "network", "data", "search", **own)
    how = Training(kind, bends, epochs, learning_rate, weight_decay, schedule, augment, limit, attack)
    written = Output(out, force, resume=resume, dry_run=dry_run)
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(a, b, written, listener, how=how, perm=perm, **settings)
    result(done, json)
