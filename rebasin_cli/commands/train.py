"""`rebasin train`: an endpoint, and beside it the state of a training that was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from ..checkpoints import destination, writer
from ..errors import ResourceError, UsageError
from ..learning import setup, training
from ..learning.recipe import told
from ..registry.options import MAY_READ, MAY_RUN, PLAIN, REQUIRED, again, argument, option
from ..registry.results import UNSET, Plan, Result, Unset
from ..runtime import devices
from ..runtime.ranks import ALONE, Ranks
from ..runtime.text import many
from ..session.asked import inputs_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, Output, Screen, Weights
from ..session.request import Subjects
from ..session.search_options import Interruptible, Training
from ..session.subjects import Data, DataSet, Network, Running
from .verbs import outputs
from .verbs.outputs import check_outputs, check_state
from .verbs.ranks import check_trained

PANEL = "Make models"
TOGETHER = True


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a network on a data set; the defaults give a good endpoint.

    The file records data set, normalisation and accuracy. After Ctrl-C or SIGTERM, --resume goes on from
    the last epoch.

    Processes that are started together share the steps: torchrun … -m rebasin_cli train …

    Example: rebasin train mlp --data mnist --seed 1 -o mnist1.safetensors
    """

    net: str = argument(
        "NET", "mlp, tinyten, resnet20, vgg16, … (`rebasin list nets`)", kind="code", role=MAY_RUN
    )
    data: str = again(
        DataSet.data, REQUIRED, help="{data sets} (npz:FILE, imagefolder:DIR, text:FILE).", panel=""
    )
    out: Path = again(Output.out, REQUIRED, panel="")
    seed: int = again(
        Running.seed, 0, help="Of the initial weights, the order and the augmentation.", panel=""
    )
    width: float | None = option(None, "Units a layer (mlp, two_layer, vit, gpt) or a multiplier.")
    depth: int | None = option(None, "Hidden layers of an mlp, blocks of a transformer (vit, gpt).")
    norm: str | None = option(None, "batch, layer, rms or none; else the architecture's own.", role=PLAIN)
    heads: int | None = option(None, "Of each block of a transformer.", min=1)
    patch: int | None = option(None, "Side of a vit's patches, in pixels.", min=1)
    activation: str | None = option(
        None, "gelu or swiglu, of a transformer; relu or tanh, of an mlp.", role=PLAIN
    )
    positions: str | None = option(None, "learned or rope, of a transformer.", role=PLAIN)
    epochs: int | None = Training.epochs
    batch_size: int | None = Training.batch_size
    optimizer: str | None = option(None, "adam, adamw (decay apart from the gradient) or sgd.", role=PLAIN)
    learning_rate: float | None = Training.learning_rate
    schedule: str | None = option(
        None,
        "cosine, constant, late (flat for half, then down to a hundredth), halving (twelve times), "
        "or triangle (by the epoch: up from 0 for five, then down).",
        role=PLAIN,
    )
    warmup: float | None = option(
        None, "The share of all steps in which the rate rises to its largest.", metavar="0–1"
    )
    momentum: float | None = option(None, "Of SGD: 0 is plain; else 0.9, Nesterov's.", metavar="0–1")
    nesterov: bool | None = option(None, "Which momentum SGD has.", role=PLAIN)
    weight_decay: float | None = Training.weight_decay
    augment: bool | None = Training.augment
    rotate: float | None = Training.rotate
    precision: str | None = option(None, "float32 or bfloat16; the faster one of this machine.", role=PLAIN)
    init: str | None = option(
        None,
        "First weights: kaiming, lecun, xavier or small (0.02), normal; torch, as its "
        "layers begin; else the network's own.",
        role=MAY_READ,
    )
    keep_every: int | None = option(
        None,
        "Also write the weights of every Nth epoch, and those before the first: NAME.epoch0.safetensors …",
        metavar="N",
        min=1,
        max=1_000_000,
    )
    attack: str | None = Training.attack
    normalize: str | None = DataSet.normalize
    data_root: Path | None = DataSet.data_root
    limit: int | None = Training.limit
    subset: float | None = option(None, "Train on this share of the samples, drawn by --seed.", metavar="0–1")
    classes_split: str | None = option(
        None,
        "Share out the samples: part a has the share X of those of the first K classes and Y of the "
        "others', part b all that a has not.",
        metavar="K:X,Y",
        role=PLAIN,
    )
    part: str | None = option(None, "The part of --classes-split.", metavar="a|b", role=PLAIN)
    split_seed: int | None = again(
        Running.seed, None, help="Of --classes-split: the same for a and b (0).", panel=""
    )
    device: str = Running.device
    resume: bool = again(
        Interruptible.resume, False, help="Go on with a training that was interrupted.", panel=""
    )
    force: bool = Weights.force
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json
    quiet: bool = Screen.quiet
    verbose: bool = Screen.verbose


@dataclass(frozen=True)
class TrainResult(Result):
    """What was `written`, the main file first; accuracies (0–1) of the whole splits."""

    written: list[str]
    net: str
    data: str
    epochs: int
    attack: str | Unset = UNSET
    train_accuracy: float | Unset = UNSET
    test_accuracy: float | Unset = UNSET
    attacked_accuracy: float | Unset = UNSET


def run(asked: Train, listener: Listener = SILENT, ranks: Ranks = ALONE) -> TrainResult | Plan:
    """Train an endpoint and write it with its provenance; an interrupted training is kept beside it.

    With `keep_every` the weights of every so many epochs are written, too, as soon as they are there. A dry
    run gives the plan instead. Several `ranks` call this alike, and share the steps; the first one writes.
    """
    output = outputs.Output(asked.out, asked.force, resume=asked.resume, dry_run=asked.dry_run)
    net, data, keep_every = asked.net, asked.data, asked.keep_every
    wanted = _wanted(asked, devices.own(devices.choose(asked.device)))
    again = output.resume or output.force
    named = Subjects(network=Network(net=net), data=Data(data=data, data_root=asked.data_root))
    inputs = inputs_of([], named)
    state = output.path.with_name(f"{output.path.stem}.training.pt")

    def check() -> None:
        check_outputs(output, inputs)
        check_state(state, "training", inputs, again=again)
        if output.resume and not state.exists():
            raise UsageError(
                f"--resume: there is no {state}",
                hint="Only a training that was interrupted after an epoch leaves one; start anew",
            )

    ranks.first(check)
    keep, prepared = None, None
    kept: list[Path] = []
    saved: list[Path] = []
    if keep_every is not None:

        def save(epoch: int, tensors: Mapping[str, Any], metadata: dict[str, str]) -> None:
            path = _kept(output.path, epoch)
            writer.write_safetensors(path, tensors, metadata=metadata, force=again, finite=tensors)
            saved.append(path)

        keep = training.Keep(keep_every, save)
    if output.dry_run or (keep is not None and asked.epochs is None):
        prepared = ranks.each(setup.prepare, net, data, **wanted)
    if keep is not None:
        epochs = prepared.recipe.epochs if prepared is not None else asked.epochs or 0
        if keep.every > epochs:
            raise UsageError(
                f"--keep-every {keep.every} keeps none of {many(epochs, 'epoch')}",
                hint=f"Give {epochs} at most, or leave it out",
            )
        kept = [_kept(output.path, epoch) for epoch in keep.epochs(epochs)]
        for path in kept:
            ranks.first(destination.check_output, path, force=again, inputs=inputs)
    if output.dry_run and prepared is not None:
        return Plan(_plan(net, prepared) | ({"keeps": list(map(str, kept))} if kept else {}))
    prepared = prepared or ranks.each(setup.prepare, net, data, **wanted)
    check_trained(ranks, prepared)

    def progress(at: training.Progress) -> None:
        tested = "" if at.test_accuracy is None else f"  test accuracy {at.test_accuracy:.4f}"
        done = (at.epoch - 1) * at.steps + at.step
        detail = f"epoch {at.epoch}/{at.epochs}  loss {at.loss:.4f}{tested}"
        listener.step("training", done, at.epochs * at.steps, detail)

    try:
        trained = training.trained(
            prepared, state_path=state, resume=output.resume, progress=progress, keep=keep, ranks=ranks
        )
        ranks.last(
            writer.write_safetensors,
            output.path,
            trained.tensors,
            metadata=trained.metadata,
            force=output.force,
            finite=trained.tensors,
        )
    except (KeyboardInterrupt, ResourceError):
        ranks.leave()
        if state.exists() and ranks.rank == 0:
            listener.say(f"stopped; the last finished epoch is kept in {state}: go on with --resume")
        raise
    if ranks.rank == 0:
        state.unlink(missing_ok=True)
    if missing := [path.name for path in kept if not path.exists()]:
        listener.say(f"not kept, since the training was begun without: {', '.join(missing)}")
    meta = trained.metadata
    names = [
        name for name in ("train_accuracy", "test_accuracy", "attacked_accuracy") if f"rebasin.{name}" in meta
    ]
    accuracies = {name: float(meta[f"rebasin.{name}"]) for name in names}
    return TrainResult(
        written=[str(output.path), *map(str, saved)],
        net=net,
        data=data,
        epochs=int(meta["rebasin.epochs"]),
        attack=meta.get("rebasin.attack", UNSET),
        **accuracies,
    )


def _wanted(asked: Train, device: str) -> setup.Wanted:
    """The options of the training itself; the others are a command's."""
    names = {each.name for each in fields(asked)} & setup.Wanted.__annotations__.keys()
    given = {name: getattr(asked, name) for name in names}
    return cast(setup.Wanted, given | {"root": asked.data_root, "device": device})


def _kept(path: Path, epoch: int) -> Path:
    """Where the weights of an epoch go: a.epoch5.safetensors beside a.safetensors."""
    return path.with_name(f"{path.stem}.epoch{epoch}{path.suffix}")


def _plan(net: str, prepared: setup.Setup) -> dict[str, Any]:
    data, used = {"data": prepared.train.name}, prepared.train.normalization
    data |= {} if used is None else {"normalization": str(used)}
    samples = {"train_samples": prepared.train.samples, "test_samples": prepared.test.samples}
    network = {"net": net, **prepared.shaped, "parameters": prepared.parameters}
    how = {"seed": prepared.seed, "device": prepared.device, "steps": prepared.steps}
    return network | data | prepared.portion | samples | how | told(prepared.recipe)
