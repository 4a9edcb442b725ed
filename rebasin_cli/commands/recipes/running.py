"""The steps of a recipe in their order: found in the cache, or run as the command lines that they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...checkpoints import digests
from ...checkpoints.staging import recover
from ...errors import GateNotMet, Interrupted, OutputExists, RebasinError, ResourceError, UsageError
from ..job.listener import Listener
from .cache import Cache
from .steps import Step

DONE, UNCHANGED, MISSED, FAILED, NOT_RUN = "done", "unchanged", "gate not met", "failed", "not run"


@dataclass(frozen=True)
class Performed:
    """What a command line left: its result as --json has it, and the error that it ended with."""

    result: Mapping[str, Any]
    error: RebasinError | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a step; `outputs` are its files with their digests."""

    step: Step
    status: str
    result: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: RebasinError | None = None

    @property
    def ok(self) -> bool:
        return self.status in (DONE, UNCHANGED)


Perform = Callable[[Sequence[str]], Performed]


@dataclass(frozen=True)
class How:
    """`again` runs steps that the cache has; `force` replaces files that no recipe made; `keep_going` runs
    what does not need a step whose gate was not met.
    """

    again: bool = False
    force: bool = False
    keep_going: bool = False


def check(steps: Sequence[Step], cache: Cache, perform: Perform, how: How) -> dict[str, Mapping[str, Any]]:
    """The plans of steps, by their own dry runs; raises for every step that can be refused before any is run.

    A step whose models are still to be made is checked when its turn comes.
    """
    plans: dict[str, Mapping[str, Any]] = {}
    failed: list[tuple[Step, RebasinError]] = []
    for step in steps:
        try:
            check_outputs(step, cache, how)
            if not step.needs and step.command.has("dry_run") and not is_done(step, cache, how):
                # What is there may be replaced, as was asked above; another job may have written it since.
                replacing = {"force": True} if step.writes else {}
                done = perform(step.line(dry_run=True, quiet=True, **replacing))
                if done.error is not None:
                    raise done.error
                plans[step.name] = done.result
        except Interrupted:
            raise
        except RebasinError as error:
            failed.append((step, error))
    if failed:
        raise _refusal(failed)
    return plans


def _refusal(failed: Sequence[tuple[Step, RebasinError]]) -> RebasinError:
    """One error for the steps that cannot be run, with the exit code of the first."""
    step, first = failed[0]
    if len(failed) == 1:
        message = f"{step.where}, step {step.name}: {first.message}"
        return type(first)(message, problems=first.problems, hint=first.hint)
    told = [f"{step.where}, step {step.name}: {error}".replace("\n", "; ") for step, error in failed]
    return type(first)(f"{len(failed)} steps cannot be run", problems=told)


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


def check_outputs(step: Step, cache: Cache, how: How) -> None:
    """Raise OutputExists for a file that is there and that no step made."""
    check_files(step.writes.values(), cache, how)


def check_files(paths: Iterable[Path], cache: Cache, how: How) -> None:
    """The same of any files."""
    for path in paths:
        recover(path if path.is_dir() else path.parent)
        if path.exists() and not how.force and not cache.made_here(path):
            raise OutputExists(
                f"{path} exists, and no recipe made it as it is now",
                hint="--force overwrites it; `out` chooses another name",
            )


def is_done(step: Step, cache: Cache, how: How) -> bool:
    return not how.again and cache.find(step, cache.key(step))[0] is not None


def _replacing(step: Step, how: How) -> dict[str, bool]:
    there = [path for path in step.writes.values() if path.exists()]
    return {"force": True} if how.force or there else {}


def run(
    steps: Sequence[Step],
    cache: Cache,
    perform: Perform,
    listener: Listener,
    how: How,
    *,
    show: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """What became of every step, in their order; `show` gets each as soon as it is known.

    After a failure nothing more is run; after a gate that is not met only what `keep_going` allows.
    """
    found: list[Outcome] = []
    for number, step in enumerate(steps, start=1):
        broken = [outcome for outcome in found if not outcome.ok]
        stopped = any(outcome.status == FAILED or not how.keep_going for outcome in broken)
        if stopped or {outcome.step.name for outcome in broken} & set(step.needs):
            found.append(Outcome(step, NOT_RUN))
            continue
        listener.say(f"step {number} of {len(steps)}: {step.name}")
        with cache.alone(step, listener.say):
            found.append(_one(step, cache, perform, listener, how))
        show(found[-1])
    return found


def _one(step: Step, cache: Cache, perform: Perform, listener: Listener, how: How) -> Outcome:
    began = time.monotonic()
    try:
        key = cache.key(step)
        record, why = (None, "") if how.again else cache.find(step, key)
        if record is not None:
            return Outcome(step, UNCHANGED, record.result, record.outputs)
        if why:
            listener.say(f"{step.name}: {why}, so it is run again")
        check_outputs(step, cache, how)
        more = _replacing(step, how) | _resuming(step, cache, key, listener)
        cache.started(step, key)
        with cache.noting(key):
            done = perform(step.line(**more))
        if done.error is not None:
            raise done.error
    except Interrupted:
        raise
    except GateNotMet as error:
        return Outcome(step, MISSED, done.result, _made(step, done, cache), _since(began), error)
    except RebasinError as error:
        return Outcome(step, FAILED, seconds=_since(began), error=error)
    kept = cache.keep(step, key, done.result, _files(step, done.result))
    return Outcome(step, DONE, kept.result, kept.outputs, _since(began))


def _since(began: float) -> float:
    return time.monotonic() - began


def _resuming(step: Step, cache: Cache, key: str, listener: Listener) -> dict[str, bool]:
    """--resume where this very step's interrupted search lies beside its output; --force where another's."""
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
        f"{step.name}: {next(path for path in kept if path.exists())} is of a search that no recipe began",
        hint="Go on with it on the command line (--resume), or remove it",
    )


def _files(step: Step, result: Mapping[str, Any]) -> list[Path]:
    """All files that a step left: what its result says, and what lies where it was told to write."""
    written = result.get("written") or []
    found = [Path(name) for name in written if isinstance(name, str)]
    for path in step.writes.values():
        found += digests.files_below(path) if path.is_dir() else [path] * path.exists()
    return list(dict.fromkeys(found))


def _made(step: Step, done: Performed, cache: Cache) -> dict[str, str]:
    return {str(path): cache.digest(path) for path in _files(step, done.result)}


def failure(outcomes: Sequence[Outcome]) -> RebasinError | None:
    """The error that the whole run ends with: a failure before a gate."""
    errors = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in sorted(errors, key=lambda one: one.status != FAILED):
        return outcome.error
    return None
