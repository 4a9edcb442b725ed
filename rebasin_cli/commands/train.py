"""`rebasin train` on files: an endpoint, and beside it the state of a training that was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoints import destination, writing
from ..errors import ResourceError, UsageError
from ..networks import training, training_setup
from ..networks.training_recipe import told
from ..runtime import devices
from ..runtime.text import many
from ..session.inputs import inputs_of
from ..session.listener import Listener
from ..session.subjects import Asked, Data, Network
from .verbs.outputs import Output, check_outputs, check_state


def train(
    net: str,
    data: str,
    output: Output,
    listener: Listener,
    *,
    device: str,
    keep_every: int | None = None,
    **recipe: Any,
) -> dict[str, Any]:
    """Train an endpoint and write it with its provenance; an interrupted training is kept beside it.

    With `keep_every` the weights of every so many epochs are written, too, as soon as they are there. A dry
    run gives the plan instead.
    """
    again = output.resume or output.force
    asked = Asked(network=Network(net=net), data=Data(data=data, data_root=recipe.get("root")))
    inputs = inputs_of([], asked)
    check_outputs(output, inputs)
    state = output.path.with_name(f"{output.path.stem}.training.pt")
    check_state(state, "training", inputs, again=again)
    if output.resume and not state.exists():
        raise UsageError(
            f"--resume: there is no {state}", hint="Only an interrupted training leaves one; start anew"
        )
    device = devices.choose(device)
    keep, kept, saved = None, [], []
    if keep_every is not None:

        def save(epoch: int, tensors: Mapping[str, Any], metadata: dict[str, str]) -> None:
            path = _kept(output.path, epoch)
            writing.write_safetensors(path, tensors, metadata=metadata, force=again, finite=tensors)
            saved.append(path)

        keep = training.Keep(keep_every, save)
    setup = None
    if output.dry_run or (keep is not None and recipe.get("epochs") is None):
        setup = training_setup.prepare(net, data, device=device, **recipe)
    if keep is not None:
        epochs = recipe["epochs"] if setup is None else setup.recipe.epochs
        if keep_every > epochs:
            raise UsageError(
                f"--keep-every {keep_every} keeps none of {many(epochs, 'epoch')}",
                hint=f"Give {epochs} at most, or leave it out",
            )
        kept = [_kept(output.path, epoch) for epoch in keep.epochs(epochs)]
        for path in kept:
            destination.check_output(path, force=again, inputs=inputs)
    if output.dry_run:
        return _plan(net, setup) | ({"keeps": list(map(str, kept))} if kept else {})

    def progress(at: training.Progress) -> None:
        tested = "" if at.test_accuracy is None else f"  test accuracy {at.test_accuracy:.4f}"
        done = (at.epoch - 1) * at.steps + at.step
        detail = f"epoch {at.epoch}/{at.epochs}  loss {at.loss:.4f}{tested}"
        listener.step("training", done, at.epochs * at.steps, detail)

    try:
        trained = training.train(
            net,
            data,
            device=device,
            state_path=state,
            resume=output.resume,
            progress=progress,
            keep=keep,
            **recipe,
        )
        writing.write_safetensors(
            output.path,
            trained.tensors,
            metadata=trained.metadata,
            force=output.force,
            finite=trained.tensors,
        )
    except (KeyboardInterrupt, ResourceError):
        if state.exists():
            listener.say(f"stopped; the last finished epoch is kept in {state}: go on with --resume")
        raise
    state.unlink(missing_ok=True)
    if missing := [path.name for path in kept if not path.exists()]:
        listener.say(f"not kept, since the training was begun without: {', '.join(missing)}")
    meta = trained.metadata
    names = [
        name for name in ("train_accuracy", "test_accuracy", "attacked_accuracy") if f"rebasin.{name}" in meta
    ]
    accuracies = {name: float(meta[f"rebasin.{name}"]) for name in names}
    if "rebasin.attack" in meta:
        accuracies = {"attack": meta["rebasin.attack"]} | accuracies
    return {
        "written": [str(output.path), *map(str, saved)],
        "net": net,
        "data": data,
        "epochs": int(meta["rebasin.epochs"]),
    } | accuracies


def _kept(path: Path, epoch: int) -> Path:
    """Where the weights of an epoch go: a.epoch5.safetensors beside a.safetensors."""
    return path.with_name(f"{path.stem}.epoch{epoch}{path.suffix}")


def _plan(net: str, setup: training_setup.Setup) -> dict[str, Any]:
    data, used = {"data": setup.train.name}, setup.train.normalization
    data |= {} if used is None else {"normalization": str(used)}
    samples = {"train_samples": setup.train.samples, "test_samples": setup.test.samples}
    network = {"net": net, **setup.shaped, "parameters": setup.parameters}
    how = {"seed": setup.seed, "device": setup.device, "steps": setup.steps}
    return network | data | setup.portion | samples | how | told(setup.recipe)
