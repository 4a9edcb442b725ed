"""Searches that can be interrupted at will: their state beside the output, taken up again with --resume."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...checkpoints import destination
from ...checkpoints.checkpoint import open_checkpoint
from ...checkpoints.disk import disk
from ...checkpoints.validation import digest
from ...checkpoints.writer import write_safetensors, write_text_atomic
from ...errors import CheckpointError, Lost, OutputExists, RebasinError, UsageError
from ...matchers import State
from ...matchers.straight_through.history import LOOKED
from ...runtime import files
from ...runtime.files import Inputs, check_distinct
from ...runtime.ranks import ALONE, Ranks
from ...session.request import Search
from ...symmetry import elements, permutation, stored
from ...symmetry.index_maps import PLAIN, Within
from ...types import Tensors
from .outputs import Output

LINE = b'{"step": '  # how every line of a log begins
LARGEST = 1 << 30  # bytes of a log
SAVE_EVERY = 60.0  # seconds; a long search may be killed at any time


@dataclass
class Resumable:
    """Where a search starts, and the last state that it reported.

    `save`, where there is one, is called now and then with the state, and not only when all ends: after
    every so many sweeps (`every`), else after a minute where the search is long. `log` gets a line of JSON
    for every state that has figures.
    """

    start: State | None = None
    last: State | None = field(default=None)
    save: Callable[[State], object] | None = None
    every: int | None = None
    log: Path | None = None
    always: bool = False  # whether a minute counts for short searches too
    saved: float = field(default_factory=time.monotonic)

    def reached(self, state: State) -> None:
        if self.log is not None and "loss" in state.notes:
            self._write(state)  # first: a line too many is removed by who goes on, one too few is missed
        self.last = state
        if self.save is None:
            return
        if self.every is not None:
            due = state.sweep % self.every == 0
        else:
            long = self.always or bool(state.tensors)
            due = long and time.monotonic() - self.saved > SAVE_EVERY
        if due:
            self.save(state)
            self.saved = time.monotonic()

    def begin_log(self) -> None:
        """Lines of steps that a resumed search takes again are removed; a new search begins an empty file."""
        if self.log is None:
            return
        start = self.start
        first = (start.notes.get("model", 0), start.sweep, _looked(start)) if start else (0, 0, False)
        with disk(self.log):
            lines = files.content(self.log, LARGEST).splitlines() if self.start and self.log.exists() else []
            places = [_step_of(line, self.log, last=k == len(lines)) for k, line in enumerate(lines, start=1)]
            kept = [line for line, place in zip(lines, places, strict=True) if place and place <= first]
            write_text_atomic(self.log, b"".join(line + b"\n" for line in kept), force=True)

    def _write(self, state: State) -> None:
        """A line a step; a second one where the held-out samples were looked at after it."""
        names = LOOKED if _looked(state) else ("loss", "changed")
        if self.log is None:
            return
        row: dict[str, Any] = {"step": state.sweep}
        if "model" in state.notes:  # of several, which is at work
            row["model"] = int(state.notes["model"])
        row |= {name: state.notes[name] for name in names if name in state.notes}
        row = {n: v if math.isfinite(v) else str(v) for n, v in row.items()}  # JSON has no infinity
        with disk(self.log):
            files.append(self.log, (json.dumps(row) + "\n").encode())


def _step_of(line: bytes, log: Path, *, last: bool) -> tuple[float, int, bool] | None:
    """A line's model, step, and whether it is of a look; None for a last one that was cut off."""
    try:
        row = json.loads(line)
        return row.get("model", 0), int(row["step"]), "loss" not in row
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as cause:
        if last and line.startswith(LINE[: len(line)]):
            return None
        raise UsageError(
            f"{log} is not the log of a search: a line of it has no step",
            hint="Choose another --log, or move that file away",
        ) from cause


def _place(state: State) -> str:
    place = f"{'step' if 'loss' in state.notes else 'sweep'} {state.sweep}"
    return f"{place} of model {state.notes['model']:.0f}" if "model" in state.notes else place


def _looked(state: State) -> bool:
    """Whether it was reported once more, with what the held-out samples said after its last step."""
    return state.notes.get("looked") == state.sweep


FORM = {"rebasin.search-form": "2"}  # how a state is kept: one of another form cannot be gone on from
SEAL = "rebasin.search-digest"  # of all else that is kept: a search never goes on from what was changed
ANEW = "what auto tries is not kept, and it begins anew"
OWN = "own"  # what a method itself needs to go on, among a kept state's tensors


def state_path(output: Path) -> Path:
    return output.with_name(f"{output.stem}.search.safetensors")


@contextmanager
def resumable(
    output: Path,
    identity: Mapping[str, str],
    words: Mapping[str, int],
    *,
    within: Within = PLAIN,
    resume: bool,
    say: Callable[[str], None],
    ranks: Ranks = ALONE,
    every: int | None = None,
    log: Path | None = None,
    force: bool = False,
) -> Iterator[Resumable]:
    """While searching and writing the result: on Ctrl-C the last state is written beside `output`.

    It is removed once the block has finished. `identity` says what search it is: a kept state of another
    one is refused with UsageError. `words` are the spec's, with their sizes, and `within` says of the starred
    ones what they lie within: permutations that do not fit are refused with CheckpointError. Of several
    `ranks` the first one keeps the state, also when another is lost, and all start from it. Long searches
    are written every minute, or after `every` so many sweeps, and to the `log` a line of JSON a step. Raises
    OutputExists where something has the state's name, unless it is a search and `force` begins anew,
    ResourceError where the log cannot be written.
    """
    path, identity = state_path(output), {**identity, **FORM}
    kept = Resumable(ranks.first(_begin, path, identity, words, within, resume=resume, force=force))
    if kept.start is not None:
        say(f"going on after {_place(kept.start)}")
    if ranks.rank > 0:
        yield kept
        return
    kept.save = lambda state: _keep(path, state, identity)
    kept.always, kept.every, kept.log = ranks.size > 1, every, log
    kept.begin_log()
    try:
        yield kept
    except (KeyboardInterrupt, Lost):
        ranks.leave()
        if kept.last is not None:
            say(_keep(path, kept.last, identity))
        elif kept.start is not None:
            say(f"interrupted; the search is still kept in {path}: go on with --resume")
        elif _begins_anew(identity):
            say(f"interrupted; {ANEW}")
        raise
    try:
        path.unlink(missing_ok=True)
    except OSError as cause:  # what was asked for is done
        say(f"{path} could not be removed: {cause.strerror or cause}; the search has ended, it is not needed")


def _begins_anew(identity: Mapping[str, str]) -> bool:
    """Whether it is a search that tries methods, of which nothing is kept."""
    return identity.get("rebasin.method") == "auto"


def _begin(
    path: Path,
    identity: Mapping[str, str],
    words: Mapping[str, int],
    within: Within,
    *,
    resume: bool,
    force: bool,
) -> State | None:
    """Where to start; None is the beginning. Nothing may lie where the search would be kept."""
    if resume:
        return _read(path, identity, words, within)
    check_no_search(path, force=force)
    return None


def check_no_search(path: Path, *, force: bool = False) -> None:
    """Raise OutputExists for anything of that name, but for a kept search where `force` begins anew."""
    if path.exists() and not _is_search(path):
        raise OutputExists(
            f"{path} exists, and an interrupted search would be kept there",
            hint="Rename it, or choose another output",
        )
    if path.exists() and not force:
        raise OutputExists(
            f"{path} exists: a search was interrupted",
            hint="Go on with --resume, or start anew with --force",
        )


def check_kept(search: Search, output: Output, inputs: Inputs, *, steps: bool) -> None:
    """Raise UsageError where a search's state or its `--log` would be one of the `inputs` or another output,
    and for a log of what takes no `steps`.

    OutputExists where a log is there already, unless it is overwritten or gone on with.
    """
    state = state_path(output.path)
    files.check_output(state, inputs)
    if search.log is None:
        return
    if not steps:
        raise UsageError(f"--log: the method {search.method} takes no steps that could be logged")
    own = {"output": output.path, "permutation": stored.beside(output.path), "state": state}
    own |= {} if output.attest is None else {"statement": output.attest}
    check_distinct([*own.items(), ("log", search.log)])
    if not output.resume:  # to overwrite the log of a search that can go on is no advice
        check_no_search(state, force=output.force)
    destination.check_output(search.log, force=output.force or output.resume, text=True, inputs=inputs)


def _keep(path: Path, state: State, identity: Mapping[str, str]) -> str:
    """Write the state; a sentence on how that went, since the user is leaving either way."""
    tensors = {
        f"{k}/{name}": tensor
        for k, element in enumerate(state.elements)
        for name, tensor in elements.tensors_of(element).items()
    }
    tensors |= {f"{OWN}/{name}": tensor.cpu().contiguous() for name, tensor in state.tensors.items()}
    metadata = {
        **identity,
        "rebasin.kind": "search",
        "rebasin.sweep": str(state.sweep),
        "rebasin.objective": repr(state.objective),
        "rebasin.notes": json.dumps(dict(state.notes), sort_keys=True),
    }
    try:
        metadata[SEAL] = _seal(tensors, metadata)
        destination.make_folder(path.parent)  # that of a report may not be there yet
        write_safetensors(path, tensors, metadata=metadata, force=True)
    except RebasinError as error:
        return f"interrupted after {_place(state)}; the search could not be kept: {error.message}"
    return f"interrupted after {_place(state)}; the search is kept in {path}: go on with --resume"


def _seal(tensors: Tensors, metadata: Mapping[str, str]) -> str:
    said = sorted((key, text) for key, text in metadata.items() if key.startswith("rebasin.") and key != SEAL)
    return hashlib.sha256(repr((said, digest(tensors))).encode()).hexdigest()


def _is_search(path: Path) -> bool:
    try:
        return open_checkpoint(path).metadata.get("rebasin.kind") == "search"
    except CheckpointError:
        return False


def _read(path: Path, identity: Mapping[str, str], words: Mapping[str, int], within: Within) -> State:
    if not path.is_file():
        anew = _begins_anew(identity)
        hint = (
            f"{ANEW}: leave --resume out"
            if anew
            else "Only a search that was interrupted once it had begun leaves one; start anew"
        )
        raise UsageError(f"--resume: there is no {path}", hint=hint)
    try:
        kept = open_checkpoint(path)
    except CheckpointError as error:
        hint = "Remove it, and start anew"
        raise CheckpointError(error.message, problems=error.problems, hint=hint) from error
    if kept.metadata.get("rebasin.kind") != "search":
        raise CheckpointError(f"{path} is not a kept search", hint="Start anew with --force")
    other = [key for key, value in identity.items() if kept.metadata.get(key) != value]
    if other:
        raise UsageError(
            f"{path} is from another search",
            problems=[f"{key}  was {kept.metadata.get(key)}, now {identity[key]}" for key in other],
            hint="Start anew with --force",
        )
    if kept.metadata.get(SEAL) != _seal(kept, kept.metadata):
        raise CheckpointError(f"{path} is damaged", hint="Start anew with --force")
    sets: dict[int, dict[str, torch.Tensor]] = {}
    own: dict[str, torch.Tensor] = {}
    try:
        for name in kept:
            k, _, word = name.partition("/")
            if k == OWN:
                own[word] = kept[name]
            else:
                sets.setdefault(int(k), {})[word] = kept[name]
        sweep, objective = int(kept.metadata["rebasin.sweep"]), float(kept.metadata["rebasin.objective"])
        notes = json.loads(kept.metadata["rebasin.notes"])
        found = tuple(elements.of_tensors(sets[k]) for k in range(len(sets)))
        state = State(found, sweep, objective, notes, own)
        for permutations in state.permutations:
            permutation.check(permutations, words, within=within)
    except (KeyError, ValueError, CheckpointError) as cause:
        raise CheckpointError(f"{path} is damaged", hint="Start anew with --force") from cause
    return state
