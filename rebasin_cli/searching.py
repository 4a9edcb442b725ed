"""A search on files: proven first, interrupted at will, taken up again with --resume."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import accounts, api, intake, matchers, permutation, sampling
from .checkpoint import Checkpoint, open_checkpoint
from .errors import CheckpointError, Lost, OutputExists, RebasinError, UsageError
from .intake import Settings
from .matchers import State
from .permutation import PLAIN, Within
from .ranks import ALONE, Ranks
from .spec.spec import FittedSpec
from .version import version
from .writing import write_safetensors

LOOKING = ("cost", "at", "sites", "mix")  # settings that are options of methods which look at activations
TUNING = ("max_sweeps", "effort", "memory", "bound", *LOOKING)  # … of any method


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
    inputs = intake.proof_inputs(network, settings, splits)
    proof = api.prove_spec(network, fitted, inputs=inputs, output=settings.output, seed=settings.seed)
    account = accounts.describe_proof(
        proof, "the network does not say its input: give --input SHAPE or --data"
    )
    return account if proof is None else account | intake.origin(network, fitted, models, settings)


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

    def progress(state: State) -> None:
        kept.reached(state)
        step("matching", state.sweep, None, f"objective {state.objective:.6g}")

    return api.align(
        *models,
        fitted,
        method=settings.method,
        seed=settings.seed,
        options=matcher_options(settings),
        start=kept.start,
        progress=progress,
        **(evidence or {}),
        device=device,
        ranks=ranks,
    )


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
    network = intake.find_network(fitted, settings, say) if network is None else network
    known = sampling.data_reference(models, settings) is not None
    api.check_needs(settings.method, network=network is not None, data=known)
    data = sampling.open_splits(models, settings, say, wanted=["match"])["match"]
    return {"network": network, "data": data, "output": settings.output, "prove": False}


def told(settings: Settings) -> dict[str, Any]:
    """The options that change what a method finds, as far as the user set them: for provenance."""
    chosen = {name: getattr(settings, name) for name in LOOKING}
    return {name: value for name, value in chosen.items() if value is not None}


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
        return None
    options = matchers.registry.get(settings.method).Options()
    given = {name: getattr(settings, name) for name in TUNING}
    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    if settings.limit is not None and (hasattr(options, "limit") or not measuring):
        chosen["limit"] = settings.limit
    for name in chosen:
        if not hasattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')}: the method {settings.method} has no such option")
    return dataclasses.replace(options, **chosen)


def bounded(options: Any) -> Any:
    """The same options with a bound on the objective, where the method knows one: for reports."""
    return dataclasses.replace(options, bound=True) if hasattr(options, "bound") else options


# ----------------------------------------------------------------------------------------- interruptions


SAVE_EVERY = 60.0  # seconds; one of many processes may be killed at any time


@dataclass
class Kept:
    """Where a search starts, and the last state that it reported.

    `save`, where there is one, is called now and then with the state, and not only when all ends.
    """

    start: State | None = None
    last: State | None = field(default=None)
    save: Callable[[State], object] | None = None
    saved: float = field(default_factory=time.monotonic)

    def reached(self, state: State) -> None:
        self.last = state
        if self.save is not None and time.monotonic() - self.saved > SAVE_EVERY:
            self.save(state)
            self.saved = time.monotonic()


def state_path(output: Path) -> Path:
    return output.with_name(f"{output.stem}.search.safetensors")


@contextmanager
def keeping(
    output: Path,
    identity: Mapping[str, str],
    words: Mapping[str, int],
    *,
    within: Within = PLAIN,
    resume: bool,
    say: Callable[[str], None],
    ranks: Ranks = ALONE,
) -> Iterator[Kept]:
    """While searching and writing the result: on Ctrl-C the last state is written beside `output`.

    It is removed once the block has finished. `identity` says what search it is: a kept state of another
    one is refused with UsageError. `words` are the spec's, with their sizes, and `within` says of the starred
    ones what they lie within: permutations that do not fit are refused with CheckpointError. Of several
    `ranks` the first one keeps the state, also when another is lost, and all start from it. Raises
    OutputExists where something else has the state's name.
    """
    path = state_path(output)
    kept = Kept(ranks.first(_begin, path, identity, words, within, resume=resume))
    if kept.start is not None:
        say(f"going on after sweep {kept.start.sweep}")
    if ranks.rank > 0:
        yield kept
        return
    if ranks.size > 1:
        kept.save = lambda state: _keep(path, state, identity)
    try:
        yield kept
    except (KeyboardInterrupt, Lost):
        if kept.last is not None:
            say(_keep(path, kept.last, identity))
        elif kept.start is not None:
            say(f"interrupted; the search is still kept in {path}: go on with --resume")
        raise
    path.unlink(missing_ok=True)


def _begin(
    path: Path, identity: Mapping[str, str], words: Mapping[str, int], within: Within, *, resume: bool
) -> State | None:
    """Where to start; None is the beginning. Nothing but a kept search may lie where one would be kept."""
    if resume:
        return _read(path, identity, words, within)
    if path.exists() and not _is_search(path):
        raise OutputExists(
            f"{path} exists, and an interrupted search would be kept there",
            hint="Rename it, or choose another output",
        )
    return None


def _keep(path: Path, state: State, identity: Mapping[str, str]) -> str:
    """Write the state; a sentence on how that went, since the user is leaving either way."""
    tensors = {
        f"{k}/{word}": perm for k, perms in enumerate(state.permutations) for word, perm in perms.items()
    }
    metadata = {
        **identity,
        "rebasin.kind": "search",
        "rebasin.sweep": str(state.sweep),
        "rebasin.objective": repr(state.objective),
        "rebasin.notes": json.dumps(dict(state.notes), sort_keys=True),
    }
    try:
        write_safetensors(path, tensors, metadata=metadata, force=True)
    except RebasinError as error:
        return f"interrupted after sweep {state.sweep}; the search could not be kept: {error.message}"
    return f"interrupted after sweep {state.sweep}; the search is kept in {path}: go on with --resume"


def _is_search(path: Path) -> bool:
    try:
        return open_checkpoint(path).metadata.get("rebasin.kind") == "search"
    except CheckpointError:
        return False


def _read(path: Path, identity: Mapping[str, str], words: Mapping[str, int], within: Within) -> State:
    if not path.is_file():
        raise UsageError(
            f"--resume: there is no {path}", hint="Only an interrupted search leaves one; start anew"
        )
    kept = open_checkpoint(path)
    if kept.metadata.get("rebasin.kind") != "search":
        raise CheckpointError(f"{path} is not a kept search", hint="Start anew without --resume")
    other = [key for key, value in identity.items() if kept.metadata.get(key) != value]
    if other:
        raise UsageError(
            f"{path} is from another search",
            problems=[f"{key}  was {kept.metadata.get(key)}, now {identity[key]}" for key in other],
            hint="Start anew without --resume",
        )
    sets: dict[int, dict] = {}
    try:
        for name in kept:
            k, _, word = name.partition("/")
            sets.setdefault(int(k), {})[word] = kept[name]
        sweep, objective = int(kept.metadata["rebasin.sweep"]), float(kept.metadata["rebasin.objective"])
        notes = json.loads(kept.metadata["rebasin.notes"])
        state = State(tuple(sets[k] for k in range(len(sets))), sweep, objective, notes)
        for permutations in state.permutations:
            permutation.check(permutations, words, within=within)
    except (KeyError, ValueError, CheckpointError) as cause:
        raise CheckpointError(f"{path} is damaged", hint="Start anew without --resume") from cause
    return state
