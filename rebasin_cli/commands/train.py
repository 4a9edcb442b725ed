"""`rebasin train` on files: an endpoint, and beside it the state of a training that was interrupted."""

from __future__ import annotations

from typing import Any

from ..checkpoints import writing
from ..errors import OutputExists, ResourceError, UsageError
from ..networks import training, training_setup
from ..runtime import devices
from .job.listener import Listener
from .job.outputs import Output, check_outputs


def train(
    net: str, data: str, output: Output, listener: Listener, *, device: str, **recipe: Any
) -> dict[str, Any]:
    """Train an endpoint and write it with its provenance; an interrupted training is kept beside it.

    A dry run gives the plan instead.
    """
    check_outputs(output)
    state = output.path.with_name(f"{output.path.stem}.training.pt")
    if state.is_symlink():  # anybody may have put it there, and it would be written through
        raise UsageError(f"{state} is a link", hint="A training keeps its state there: remove the link")
    if state.exists() and not (output.resume or output.force):
        raise OutputExists(
            f"{state} exists: a training was interrupted",
            hint="Go on with --resume, or start anew with --force",
        )
    if output.resume and not state.exists():
        raise UsageError(
            f"--resume: there is no {state}", hint="Only an interrupted training leaves one; start anew"
        )
    device = devices.choose(device)
    if output.dry_run:
        return _plan(net, training_setup.prepare(net, data, device=device, **recipe))

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
            **recipe,
        )
        writing.write_safetensors(output.path, trained.tensors, metadata=trained.metadata, force=output.force)
    except (KeyboardInterrupt, ResourceError):
        if state.exists():
            listener.say(f"stopped; the last finished epoch is kept in {state}: go on with --resume")
        raise
    state.unlink(missing_ok=True)
    meta = trained.metadata
    names = [
        name for name in ("train_accuracy", "test_accuracy", "attacked_accuracy") if f"rebasin.{name}" in meta
    ]
    accuracies = {name: float(meta[f"rebasin.{name}"]) for name in names}
    if "rebasin.attack" in meta:
        accuracies = {"attack": meta["rebasin.attack"]} | accuracies
    return {
        "written": [str(output.path)],
        "net": net,
        "data": data,
        "epochs": int(meta["rebasin.epochs"]),
    } | accuracies


def _plan(net: str, setup: training_setup.Setup) -> dict[str, Any]:
    data, used = {"data": setup.train.name}, setup.train.normalization
    data |= {} if used is None else {"normalization": str(used)}
    samples = {"train_samples": setup.train.samples, "test_samples": setup.test.samples}
    return {"net": net, "parameters": setup.parameters, **data, **samples, "device": setup.device} | {
        "steps": setup.steps,
        **training_setup.told(setup.recipe),
    }
