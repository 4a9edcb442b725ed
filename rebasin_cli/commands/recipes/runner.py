"""The steps of a recipe in their order: found in the cache, or run."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...checkpoints import digests
from ...checkpoints.disk import recover
from ...errors import (
    CheckpointError,
    GateNotMet,
    Interrupted,
    OutputExists,
    RebasinError,
    ResourceError,
    TimedOut,
    UsageError,
    account,
    as_error,
)
from ...reports import Report
from ...reports.verdicts import GateResult, raise_unmet
from ...runtime.files import is_missing
from ...session.listener import Listener
from ..verbs import before as taken
from .cache import Cache, report_of
from .files import lies
from .steps import Step

DONE, UNCHANGED, MISSED, FAILED, NOT_RUN = "done", "unchanged", "gate not met", "failed", "not run"
INTERRUPTED, TIMED_OUT = "interrupted", "timed out"
ELSEWHERE = ". A --cache DIR outside of the recipe's folder knows what earlier runs with --untrusted wrote"
BROKEN = (FAILED, INTERRUPTED, TIMED_OUT)  # it ended with an error, and nothing is run after it


@dataclass(frozen=True)
class Performed:
    """What a step left: its result as --json has it, and the error that it ended with."""

    result: Mapping[str, Any]
    error: RebasinError | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a step: `outputs` with their digests, and `reads`, those that they were made of."""

    step: Step
    status: str
    result: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: RebasinError | None = None

    @property
    def ok(self) -> bool:
        return self.status in (DONE, UNCHANGED)

    @property
    def ended(self) -> bool:
        """Whether what the step has left is of this run."""
        return self.ok or self.status == MISSED

    @cached_property
    def report(self) -> Report | None:
        """The barrier report that it left, now or when it was run last."""
        return report_of(self.result)


Perform = Callable[[Step, Mapping[str, Any]], Performed]  # a step, with these options beside its own


@dataclass(frozen=True)
class How:
    """`again` runs steps that the cache has; `force` replaces files that no recipe made; `keep_going` runs
    what does not need a step whose gate was not met.
    """

    again: bool = False
    force: bool = False
    keep_going: bool = False


@dataclass
class Progress:
    """How far a run of these steps has come; `error` is what ended it that is no step's own."""

    steps: Sequence[Step] = ()
    outcomes: list[Outcome] = field(default_factory=list)
    running: Step | None = None
    began: float = 0.0
    error: RebasinError | None = None
    not_passed: dict[Path, Path] = field(default_factory=dict)  # where weights lie, by where they would

    @property
    def stopped(self) -> Outcome | None:
        """The step that ended it."""
        return next((one for one in self.outcomes if not one.ok and one.status != NOT_RUN), None)

    @contextmanager
    def at(self, step: Step) -> Iterator[None]:
        """While a step runs, or is checked; what goes through, but for a finding, ends the run there."""
        self.running, self.began = step, time.monotonic()
        try:
            yield
        except RebasinError as error:
            if not isinstance(error, Interrupted):
                self.running = None
            raise
        self.running = None

    def end(self, error: RebasinError | None) -> None:
        """The run is over. An `error` is that of the step that ran; what comes after is not run."""
        self.error = error
        known = {outcome.step.name: outcome for outcome in self.outcomes}
        if error is not None and self.running is not None:
            broken = _broken(self.running, error, seconds=_since(self.began))
            known.setdefault(self.running.name, broken)
        self.outcomes[:] = [known.get(step.name, Outcome(step, NOT_RUN)) for step in self.steps]


def _broken(step: Step, error: RebasinError, **known: Any) -> Outcome:
    """A step that ended with an error of its own, or with that of the whole run."""
    kinds = {TimedOut: TIMED_OUT, Interrupted: INTERRUPTED}
    status = next((status for kind, status in kinds.items() if isinstance(error, kind)), FAILED)
    return Outcome(step, status, error=error, **known)


@contextmanager
def folders(files: Iterable[Path], *, keep: bool) -> Iterator[None]:
    """The folders of these files, made where missing; gone again after a failure, or without `keep`."""
    needed = [path.absolute().parent for path in files]
    new = {place for folder in needed for place in (folder, *folder.parents) if not place.exists()}
    done = False
    try:
        for folder in needed:
            _make(folder)
        yield
        done = keep
    finally:
        for folder in sorted(new, reverse=True) if not done else ():
            with suppress(OSError):
                folder.rmdir()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder} cannot be a folder: there is a file of that name") from None
    except OSError as error:
        raise ResourceError(f"{folder} cannot be made: {error.strerror}") from None


def check_outputs(paths: Iterable[Path], cache: Cache, how: How) -> None:
    """Raise OutputExists for a file that is there and that no step made."""
    for path in paths:
        recover(path if path.is_dir() else path.parent)  # what a run left that was killed while it renamed
        if path.exists() and not how.force and not cache.is_ours(path):
            raise OutputExists(
                f"{path} exists, and no recipe made it as it is now",
                hint="--force overwrites it; or choose another name" + ELSEWHERE * cache.stranger,
            )


def is_done(step: Step, cache: Cache, how: How) -> bool:
    """Whether the cache has this very step; not where what it reads is still to be made."""
    found = _of_before(step, how)
    return found is not None and cache.find(cache.key(found))[0] is not None


def known(step: Step, cache: Cache, how: How) -> Report | None:
    """What this step has measured before; None where it has to, or what it reads is still to be made."""
    if (found := _of_before(step, how)) is None:
        return None
    return cache.measured(cache.measuring(found, cache.reads(found)))


def _of_before(step: Step, how: How) -> Step | None:
    """The step as the cache may know it; None where it is run anyway, or lacks what it reads."""
    found = None if how.again else step.found()
    return found if found and all(lies(path).exists() for path in found.reads) else None


def run(
    steps: Sequence[Step],
    cache: Cache,
    perform: Perform,
    listener: Listener,
    how: How,
    *,
    show: Callable[[Outcome], None] = lambda outcome: None,
    progress: Progress | None = None,
    limited: Callable[[Step], AbstractContextManager[object]] = nullcontext,
) -> list[Outcome]:
    """What became of every step, in their order; `show` gets each as soon as it is known, as `progress` does.

    After a failure nothing more is run; after a gate that is not met only what `keep_going` allows. Ctrl-C,
    SIGTERM and a time limit go through; `progress` knows where. `limited` is around each step, and ends it.
    """
    progress = progress or Progress(steps)
    found = progress.outcomes
    broken = {outcome.step.name for outcome in found if not outcome.ok}
    stopped = False
    for number, step in enumerate(steps, start=1):
        if stopped or broken.intersection(step.needs):
            found.append(Outcome(step, NOT_RUN))
        else:
            listener.say(f"step {number} of {len(steps)}: {step.name}")
            with progress.at(step), limited(step), cache.alone(step, listener.say):
                found.append(_one(step.found(), cache, perform, listener, how))
            show(found[-1])
        if not found[-1].ok:
            broken.add(step.name)
            stopped = stopped or found[-1].status in BROKEN or not how.keep_going
    return found


def _one(step: Step, cache: Cache, perform: Perform, listener: Listener, how: How) -> Outcome:
    began = time.monotonic()
    done, reads = Performed({}), {}
    try:
        reads = cache.reads(step)
        _check_pins(step, reads)
        key = cache.key(step, reads)
        record, why = (None, "") if how.again else cache.find(key)
        if record is not None:
            for name in record.outputs:  # a card, which was put aside before anything else
                if (there := lies(Path(name))) != Path(name):
                    cache.move(there, Path(name))
            return Outcome(step, UNCHANGED, record.result, record.outputs, reads)
        if why:
            listener.say(f"{step.name}: {why}, so it is run again")
        check_outputs(step.guarded, cache, how)
        figures = cache.measuring(step, reads)
        before = None if how.again else cache.measured(figures)
        if before is not None:
            listener.say(f"{step.name}: nothing is measured again; gates are judged by the figures of before")
        replacing = how.force or any(path.exists() for path in step.files)
        more = {"force": True} if replacing else {}
        more |= _resuming(step, cache, key, listener)
        cache.started(step, key)
        own = [path for path in step.files if not path.exists() or cache.is_ours(path)]
        with cache.making(own) as made, taken.measured(before):
            done = perform(step, more)
            if done.error is None or isinstance(done.error, GateNotMet):
                made += step.files  # those that grow line by line, too
        if done.error is None or isinstance(done.error, GateNotMet):
            _check_unchanged(step, cache, reads)
            cache.keep_measured(step, figures, done.result)
        if done.error is not None:
            raise done.error
    except Interrupted:
        raise
    except GateNotMet as error:
        return Outcome(step, MISSED, done.result, _made(step, done, cache), reads, _since(began), error)
    except Exception as error:
        if account(error) is None:  # a bug
            raise
        failed = placed(step, as_error(error))
        return Outcome(step, FAILED, reads=reads, seconds=_since(began), error=failed)
    outputs = _made(step, done, cache)
    cache.keep(step, key, outputs, done.result)
    return Outcome(step, DONE, done.result, outputs, reads, _since(began))


def placed(step: Step, error: RebasinError) -> RebasinError:
    """The same error, with its step."""
    found = copy.copy(error)
    found.message = f"{step.where}, step {step.name}: {error.message}"
    found.step = step.name
    return found


def _since(began: float) -> float:
    return time.monotonic() - began


def _check_pins(step: Step, reads: Mapping[str, str]) -> None:
    for name, digest in step.pins.items():
        if reads.get(name, digest) != digest:
            raise CheckpointError(
                f"{name} is not the file that is pinned: its sha256 is {reads[name]}",
                hint="It was replaced since the recipe was read",
            )


def _check_unchanged(step: Step, cache: Cache, reads: Mapping[str, str]) -> None:
    """Raise CheckpointError where a file is another one than when the step began."""
    for name, digest in reads.items():
        if not Path(name).exists() or cache.digest(Path(name)) != digest:
            raise CheckpointError(
                f"{name} was changed while the step ran: what it made is not to be trusted",
                hint="Run the recipe again, when nobody writes its inputs",
            )
    for path in step.awaited:
        if not is_missing(path):
            raise CheckpointError(
                f"{path} was not there when the step began, and is now: what it found is not to be trusted",
                hint="Run the recipe again",
            )


def _resuming(step: Step, cache: Cache, key: str, listener: Listener) -> dict[str, bool]:
    """--resume where this very step's interrupted search lies beside its output; --force for another's."""
    if not step.command.has("resume") or "" not in step.writes:
        return {}
    out = step.writes[""]
    kept = [out.with_name(f"{out.stem}.{what}") for what in ("search.safetensors", "training.pt")]
    if not any(path.exists() for path in kept):
        return {}
    begun = cache.started(step)
    if begun == key:
        listener.say(f"{step.name}: going on with what was interrupted")
        return {"resume": True}
    if begun is not None:
        listener.say(f"{step.name}: what was interrupted was another step; it begins anew")
        return {"force": True}
    raise UsageError(
        f"{next(path for path in kept if path.exists())} is of a search that no recipe began",
        hint="Go on with it on the command line (--resume), or remove it",
    )


def _made(step: Step, done: Performed, cache: Cache) -> dict[str, str]:
    """The digests of what a step left: files that its result tells of, and those where it writes."""
    written = done.result.get("written") or []
    found = [Path(name) for name in written if isinstance(name, str)]
    for path in step.files:
        found += digests.files_below(path) if path.is_dir() else [path] * path.exists()
    return {str(path): cache.made(path) for path in dict.fromkeys(found) if path.exists()}


def failure(outcomes: Sequence[Outcome], gates: Sequence[GateResult]) -> RebasinError | None:
    """The error that the run ends with: a step's failure, else the gates of all steps that were missed."""
    for outcome in outcomes:
        if outcome.status in BROKEN:
            return outcome.error
    try:
        raise_unmet(gates)
    except GateNotMet as error:
        return error
    return next((outcome.error for outcome in outcomes if outcome.error is not None), None)
