"""A search on files: what it looks at, which options it gets, how it goes."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import api, matchers
from ..checkpoints import writing
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.tensors import digest
from ..errors import UsageError
from ..matchers import INITS, State
from ..permutations import permutation
from ..reports import _accounts as accounts
from ..runtime.ranks import ALONE, Ranks
from ..spec.spec import FittedSpec
from ..version import version
from . import intake, resume, running, sampling
from .outputs import Output, permutation_path
from .resume import Kept
from .settings import Settings

LOOKING = ("cost", "at", "sites", "mix")  # settings that are options of methods which look at activations
LEARNING = (  # … of methods that train
    "epochs",
    "optimizer",
    "learning_rate",
    "share",
    "init",
    "precision",
    "mixture",
    "parameter",
    "weights_prior",
)
FEEDING = ("data", "normalize", "limit", "batch_size", "loss", "output", "net")  # what a network is run on
TUNING = ("max_sweeps", "effort", "memory", "bound", *LOOKING, *LEARNING)  # … of any method


def prove(
    network: nn.Module | None,
    fitted: FittedSpec,
    models: Sequence[Checkpoint],
    settings: Settings,
    *,
    splits: sampling.Splits | None = None,
    permuted: bool = True,
) -> dict[str, Any]:
    """Prove that permuting by the spec preserves the network's function; the account of it, or why none.

    Raises NotProven, and NetworkError where the network fails.
    """
    if not settings.prove:
        return {"status": "skipped", "reason": "--no-prove"}
    if not permuted:
        return {"status": "skipped", "reason": "nothing was permuted"}
    if network is None:
        return accounts.describe_proof(None)
    inputs = running.proof_inputs(network, settings, splits)
    proof = api.prove_spec(network, fitted, inputs=inputs, output=settings.output, seed=settings.seed)
    account = accounts.describe_proof(
        proof, "the network does not say its input: give --input SHAPE or --data"
    )
    return account if proof is None else account | running.origin(network, fitted, models, settings)


def search(
    models: Sequence[Checkpoint],
    fitted: FittedSpec,
    settings: Settings,
    kept: Kept,
    step: Callable[[str, int, int | None, str], None],
    *,
    evidence: Mapping[str, Any] | None = None,
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> api.Alignment:
    """Find the permutations with the method that was asked for, from where `kept` says.

    `evidence` is what `find_evidence` found.
    """

    start = kept.start or first_state(settings, len(models), fitted)
    show = shown(step, kept.start)

    def progress(state: State) -> None:
        kept.reached(state)
        show(state)

    return api.align(
        *models,
        fitted,
        method=settings.method,
        seed=settings.seed,
        options=matcher_options(settings),
        start=start,
        progress=progress,
        **(evidence or {}),
        device=device,
        ranks=ranks,
    )


def shown(
    step: Callable[[str, int, int | None, str], None], start: State | None = None
) -> Callable[[State], None]:
    """What tells a person how a search goes, with the seconds left of all models' where steps are counted."""
    began, first = time.monotonic(), steps(start)[0] if start else 0

    def show(state: State) -> None:
        done, total = steps(state)
        seconds = (time.monotonic() - began) / max(1, done - first)
        step("matching", done, total, in_words(state, seconds * ((total or 0) - done)))

    return show


def steps(state: State) -> tuple[int, int | None]:
    """Steps that are done, of how many: over all models, where it is known how many one takes."""
    each = int(state.notes.get("steps", 0))
    before, models = state.notes.get("model", 2) - 2, state.notes.get("models", 2) - 1
    return int(before * each) + state.sweep, int(models * each) or None


def in_words(state: State, left: float = 0.0) -> str:
    """How a search goes; `left` is in seconds."""
    notes = state.notes
    place = f"model {notes['model']:.0f} of {notes['models']:.0f}  " if "model" in notes else ""
    if "loss" not in notes:
        return f"{place}objective {state.objective:.6g}"
    words = [
        f"{place}loss {notes['loss']:.4f}",
        f"held-out loss {notes['held_out_loss']:.4f}"
        + (f", accuracy {notes['held_out_accuracy']:.4f}" if "held_out_accuracy" in notes else ""),
        f"{100 * notes['changed']:.1f}% of units moved",
    ]
    return "  ".join([*words, *[f"{left:.0f} s left"] * (left > 0)])


def find_evidence(
    models: Sequence[Checkpoint],
    fitted: FittedSpec,
    settings: Settings,
    say: Callable[[str], None],
    network: nn.Module | None = None,
) -> dict[str, Any]:
    """The network (or the given one) and the training samples that a method looks at.

    Empty where weights are enough. Raises UsageError that says what is missing.
    """
    if settings.method == "none" or not matchers.registry.get(settings.method).NEEDS:
        return {}
    network = running.find_network(fitted, settings, say) if network is None else network
    known = sampling.data_reference(models, settings) is not None
    api.check_needs(settings.method, network=network is not None, data=known)
    samples = getattr(matchers.registry.get(settings.method), "SAMPLES", sampling.MATCH_SAMPLES)
    data = sampling.open_splits(models, settings, say, wanted=["match"], match=samples)["match"]
    found = {"network": network, "data": data, "output": settings.output, "prove": False}
    return found | ({"loss": sampling.loss_of(settings)} if settings.loss else {})


def told(settings: Settings) -> dict[str, Any]:
    """The options that change what a method finds, as far as the user set them: for provenance.

    Of methods that look at data also which and how much of it; a file's own path is not told.
    """
    chosen = {name: getattr(settings, name) for name in (*LOOKING, *LEARNING)}
    if init_file(settings):
        chosen["init"] = digest(permutation.load(Path(settings.init))[0])
    if settings.method != "none" and matchers.registry.get(settings.method).NEEDS:
        data = None if settings.data is None else settings.data.partition(":")[0]
        chosen |= {"data": data, "limit": settings.limit, "normalize": settings.normalize}
        if trains(settings.method):
            chosen["batch_size"] = settings.batch_size
    return {name: value for name, value in chosen.items() if value is not None}


def identity(settings: Settings) -> dict[str, Any]:
    """All that a kept search must agree on with the one that goes on with it, as far as options decide."""
    chosen = told(settings)
    if settings.method != "none" and matchers.registry.get(settings.method).NEEDS:
        chosen |= {name: getattr(settings, name) for name in FEEDING}
    return chosen | {"effort": settings.effort}


def check_log(settings: Settings, output: Output, inputs: Sequence[Path]) -> None:
    """Raise UsageError for a `--log` of a method that takes no steps, or over a file of the search itself.

    OutputExists where it is there already, unless it is overwritten or gone on with.
    """
    if settings.log is None:
        return
    if not trains(settings.method):
        raise UsageError(f"--log: the method {settings.method} takes no steps that could be logged")
    own = (*inputs, output.path, permutation_path(output.path), resume.state_path(output.path))
    if os.path.realpath(settings.log) in map(os.path.realpath, own):
        raise UsageError(
            f"--log {settings.log} is a model, or an output of this very search", hint="Choose another name"
        )
    if not output.resume:  # to overwrite the log of a search that can go on is no advice
        resume.check_none_kept(resume.state_path(output.path), force=output.force)
    writing.check_output(settings.log, force=output.force or output.resume, text=True)


def trains(method: str) -> bool:
    """Whether a method learns by the gradient of a loss."""
    if method in ("none", "given"):
        return False
    return hasattr(matchers.registry.get(method).Options, "learning_rate")


def init_file(settings: Settings) -> bool:
    """Whether --init names a file, and not a method."""
    return settings.init is not None and settings.init not in INITS


def first_state(settings: Settings, models: int, fitted: FittedSpec) -> State | None:
    """Where `--init FILE` lets a search start; None where it names no file.

    Raises UsageError for more than two models, and what `intake.read_permutation` does.
    """
    if not init_file(settings):
        return None
    if models != 2:
        raise UsageError(
            f"--init {settings.init} is for the second of two models, not of {models}",
            hint=f"Choose one of {', '.join(INITS)}",
        )
    return State((intake.read_permutation(Path(settings.init), fitted)[0],))


def started(found: api.Alignment | None) -> dict[str, str]:
    """How a search that learns began, for provenance; nothing where the user said it with a file."""
    init = found.result.init if found else None
    return {} if init in (None, "given") else {"init": init}


def facts(models: Sequence[Checkpoint], fitted: FittedSpec, settings: Settings) -> dict[str, Any]:
    """What processes that search together must agree on: all but where their files are.

    Of every tensor a few values are looked at: enough to tell models apart, and soon read.
    """
    search = [getattr(settings, name) for name in ("method", "seed", "device", "prove", *TUNING)]
    roles = ("the reference", "the other model")
    return {
        "the version of rebasin": version(),
        "the version of torch": torch.__version__,
        "the spec": (fitted.spec.name, fitted.spec.digest),
        "an option": search,
    } | {role: _sampled(model) for role, model in zip(roles, models, strict=True)}


def _sampled(model: Checkpoint) -> str:
    """A digest of names, dtypes, shapes and some 16 values a tensor."""
    total = hashlib.sha256()
    for name in sorted(model):
        tensor = model[name].detach()
        total.update(repr((name, model.dtypes[name], model.shapes[name])).encode())
        step = max(1, tensor.numel() // 16)
        some = tensor.reshape(-1)[::step] if tensor.is_contiguous() else tensor.flatten()[::step]
        total.update(some.contiguous().view(torch.uint8).numpy())
    return total.hexdigest()


def matcher_options(settings: Settings, *, measuring: bool = False) -> Any:
    """The method's own Options, with what the user set. A limit of samples may also be for `measuring`.

    Raises UsageError for an unknown method, and for an option that it does not have.
    """
    if settings.method == "none":
        if given := [name for name in (*LOOKING, *LEARNING) if getattr(settings, name) is not None]:
            raise _foreign(given[0], "none")
        return None
    options = matchers.registry.get(settings.method).Options()
    given = ((name, getattr(settings, name)) for name in TUNING)
    chosen = {name: value for name, value in given if value is not None and value is not False}
    if settings.limit is not None and (hasattr(options, "limit") or not measuring):
        chosen["limit"] = settings.limit
    if init_file(settings) and hasattr(options, "init"):
        if not Path(settings.init).is_file():
            raise UsageError(
                f"--init {settings.init}: neither a way to start nor a file",
                hint=f"Choose one of {', '.join(INITS)}, or a *.perm.safetensors",
            )
        chosen["init"] = "identity"
    for name in chosen:
        if not hasattr(options, name):
            raise _foreign(name, settings.method)
    return dataclasses.replace(options, **chosen)


def _foreign(name: str, method: str) -> UsageError:
    option = "--lr" if name == "learning_rate" else f"--{name.replace('_', '-')}"
    having = [m for m in matchers.registry.names() if hasattr(matchers.registry.get(m).Options(), name)]
    hint = f"It is for {', '.join(having)}" if having else None
    return UsageError(f"{option}: the method {method} has no such option", hint=hint)


def planned(settings: Settings) -> dict[str, Any]:
    """What a plan must know beside the models."""
    options = None if settings.method == "none" else matcher_options(settings, measuring=True)
    return {"proof": settings.prove, "memory": settings.memory, "options": options}


def bounded(options: Any) -> Any:
    """The same options with a bound on the objective, where the method knows one: for reports."""
    return dataclasses.replace(options, bound=True) if hasattr(options, "bound") else options
