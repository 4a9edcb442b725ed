"""Steps judged before any is run: their plans by their own dry runs, or one error for all refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ...checkpoints.locate import ToCome, to_come
from ...errors import Interrupted, RebasinError
from ..verbs import before as taken
from .cache import Cache
from .runner import FAILED, How, Outcome, Perform, Progress, check_outputs, is_done, known, placed
from .steps import Step


def check(
    steps: Sequence[Step],
    cache: Cache,
    perform: Perform,
    how: How,
    *,
    coming: Iterable[Path] = (),
    progress: Progress | None = None,
    limited: Callable[[Step], AbstractContextManager[object]] = nullcontext,
) -> dict[str, Mapping[str, Any]]:
    """The plans of steps, by their own dry runs; raises for every step that can be refused before any is run.

    A step whose models are still to be made, or `coming`, is judged by its options now, and by its models
    when its turn comes.
    """
    plans: dict[str, Mapping[str, Any]] = {}
    failed: list[tuple[Step, RebasinError]] = []
    places, progress = _places(coming), progress or Progress(steps)
    for step in steps:
        try:
            if is_done(step, cache, how):
                places |= _places(path for path in step.files if not path.exists())  # put aside
                continue
            check_outputs(step.guarded, cache, how)
            with progress.at(step), limited(step), taken.measured(known(step, cache, how)):
                # It may run code of the user's.
                plan = _judged(step, places, perform)
            if plan is not None:
                plans[step.name] = plan
        except Interrupted:
            raise
        except RebasinError as error:
            failed.append((step, placed(step, error)))
        places |= _places(step.files)
    if failed:
        progress.outcomes += [Outcome(step, FAILED, error=error) for step, error in failed]
        raise _refusal([error for _, error in failed])
    return plans


def _places(paths: Iterable[Path]) -> set[str]:
    return {os.path.realpath(path) for path in paths}


def _judged(step: Step, coming: Set[str], perform: Perform) -> Mapping[str, Any] | None:
    """The plan of a step; None where it takes a model that is to come, or where its command makes no plan.

    A command without a dry run is judged as one whose models are all to come: it looks at its options, and
    ends where it would open the first of them. Raises what the command says.
    """
    planned, stops = step.command.has("dry_run"), step.command.has("device") and step.command.takes_models
    if not (planned or stops):
        return None
    with to_come(coming if planned else coming | _places(step.reads)):
        # What is there may be replaced, as was asked before; another job may have written it since.
        done = perform(step, {"dry_run": True, "quiet": True, "force": bool(step.writes)})
    if done.error is not None and not isinstance(done.error, ToCome):
        raise done.error
    return None if done.error is not None else done.result


def _refusal(failed: Sequence[RebasinError]) -> RebasinError:
    """One error for the steps that cannot be run, with the exit code of the first."""
    if len(failed) == 1:
        return failed[0]
    told = [str(error).replace("\n", "; ") for error in failed]
    return type(failed[0])(f"{len(failed)} steps cannot be run", problems=told)
