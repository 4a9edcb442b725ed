"""A search on files: proven first, interrupted at will, taken up again with --resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from . import accounts, api, intake, matchers, permutation
from .checkpoint import Checkpoint, open_checkpoint
from .errors import CheckpointError, OutputExists, RebasinError, UsageError
from .intake import Settings
from .matchers import State
from .spec.spec import FittedSpec
from .writing import write_safetensors


def prove(
    network: nn.Module | None,
    fitted: FittedSpec,
    models: Sequence[Checkpoint],
    settings: Settings,
    *,
    splits: intake.Splits | None = None,
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
    proof = api.prove_spec(network, fitted, inputs=inputs, seed=settings.seed)
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
) -> api.Alignment:
    """Find the permutations with the method that was asked for, from where `kept` says."""

    def progress(state: State) -> None:
        kept.last = state
        step("matching", state.sweep, None, f"objective {state.objective:.6g}")

    return api.align(
        *models,
        fitted,
        method=settings.method,
        seed=settings.seed,
        options=matcher_options(settings),
        start=kept.start,
        progress=progress,
    )


def matcher_options(settings: Settings) -> Any:
    """The method's own Options, with what the user set.

    Raises UsageError for an unknown method, and for an option that it does not have.
    """
    options = matchers.registry.get(settings.method).Options() if settings.method != "none" else None
    if options is None or settings.max_sweeps is None:
        return options
    if not hasattr(options, "max_sweeps"):
        raise UsageError(f"--max-sweeps: the method {settings.method} knows no sweeps")
    return dataclasses.replace(options, max_sweeps=settings.max_sweeps)


# ----------------------------------------------------------------------------------------- interruptions


@dataclass
class Kept:
    """Where a search starts, and the last state that it reported."""

    start: State | None = None
    last: State | None = field(default=None)


def state_path(output: Path) -> Path:
    return output.with_name(f"{output.stem}.search.safetensors")


@contextmanager
def keeping(
    output: Path,
    identity: Mapping[str, str],
    words: Mapping[str, int],
    *,
    resume: bool,
    say: Callable[[str], None],
) -> Iterator[Kept]:
    """While searching and writing the result: on Ctrl-C the last state is written beside `output`.

    It is removed once the block has finished. `identity` says what search it is: a kept state of another
    one is refused with UsageError. `words` are the spec's, with their sizes. Raises OutputExists where
    something else has the state's name.
    """
    path = state_path(output)
    if path.exists() and not resume and not _is_search(path):
        raise OutputExists(
            f"{path} exists, and an interrupted search would be kept there",
            hint="Rename it, or choose another output",
        )
    kept = Kept(_read(path, identity, words) if resume else None)
    if kept.start is not None:
        say(f"going on after sweep {kept.start.sweep}")
    try:
        yield kept
    except KeyboardInterrupt:
        if kept.last is not None:
            say(_keep(path, kept.last, identity))
        elif kept.start is not None:
            say(f"interrupted; the search is still kept in {path}: go on with --resume")
        raise
    path.unlink(missing_ok=True)


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


def _read(path: Path, identity: Mapping[str, str], words: Mapping[str, int]) -> State:
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
        state = State(tuple(sets[k] for k in range(len(sets))), sweep, objective)
        for permutations in state.permutations:
            permutation.check(permutations, words)
    except (KeyError, ValueError, CheckpointError) as cause:
        raise CheckpointError(f"{path} is damaged", hint="Start anew without --resume") from cause
    return state
