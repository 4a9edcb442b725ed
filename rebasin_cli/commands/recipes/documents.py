"""What a run says of itself: JUnit, step summary, JSON result, statement. They are this run's, or not there.

Those of an earlier run are removed before anything else, also before the recipe is read: the cache remembers
them (`documents/ID.json`, one for a recipe with its assignments). However the run ends, what is known by then
is written: the steps, the error, the step that ran. Nothing here needs torch, so that a run whose torch is
broken says so, too.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...checkpoints import digests
from ...checkpoints.disk import disk
from ...checkpoints.stages import staged
from ...errors import Interrupted, RebasinError, TimedOut, UsageError, as_error
from ...reports import github
from ...reports.formats import json as json_format
from ...reports.github import StepSummary
from ...runtime import files, signals
from ...runtime.files import Inputs
from . import runner, statements
from .aside import NotPassed
from .cache import Cache
from .reader import public
from .recipe import Recipe
from .remembered import Left, Remembered
from .runner import How, Progress
from .statements import gates_of
from .steps import Step


@dataclass(frozen=True)
class Named:
    """The files that the command line names, beside those of the recipe."""

    junit: Path | None = None
    step_summary: Path | None = None
    result: Path | None = None


@dataclass
class Documents:
    """The documents of a run of the recipe in `path`, and how far it is; `shown` gets the JSON at its end.

    A `dry` run removes none and writes none.
    """

    path: Path
    cache: Cache
    named: Named = Named()
    assignments: Sequence[str] = ()
    how: How = How()
    say: Callable[[str], None] = lambda text: None
    shown: Callable[[Mapping[str, Any]], object] = lambda account: None
    dry: bool = False
    about: dict[str, Any] = field(default_factory=dict)  # goes into the JSON
    variables: dict[str, str] = field(default_factory=dict)  # of the environment, that the recipe had
    recipe: Recipe | None = None
    progress: Progress = field(default_factory=Progress)
    error: RebasinError | None = None  # what the run ended with
    _cleared: bool = False  # whether nothing of a person's own lies where they go
    _over: bool = False
    _locked: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _mine: bool = False
    _waits: bool = False  # for another job that runs the same recipe
    _waited: bool = False
    _written: dict[str, None] = field(default_factory=dict)
    _added: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        told = {"recipe": str(self.path), "set": [public(text) for text in self.assignments]}
        self.about = told | ({"untrusted": True} if self.cache.stranger else {}) | self.about
        self._remembered = Remembered(self.cache, self.path, self.assignments)
        self._not_passed = NotPassed(self._remembered, self.say)

    @contextlib.contextmanager
    def at_every_end(self) -> Iterator[Documents]:
        """Within, the run: documents of an earlier one are gone, and at its end its own are written.

        Raises what the run ended with: what the block raised, a step's failure, gates that were missed. Of
        two runs of one recipe at once the second waits.
        """
        cause: BaseException | None = None
        with self._locked:
            try:
                try:
                    if self.cache.folder.is_dir():
                        self._lock()
                    self.forget()
                    yield self
                except BaseException as raised:
                    cause = raised
                with signals.unanswered():
                    self.finish(cause)
            except KeyboardInterrupt as late:  # between two of these lines
                cause = cause or late
                with signals.unanswered():
                    self.finish(cause)
        if cause is not None and not isinstance(self.error, Interrupted):
            raise cause
        if self.error is not None:
            raise self.error from cause

    def _lock(self) -> None:
        """Wait until no other job runs the same recipe: its documents and outputs are its own until then."""
        if self.dry or self._mine:
            return
        self._waits = True
        self._locked.enter_context(self.cache.held(self._remembered.name, self._waiting))
        self._waits, self._mine = False, True

    def _waiting(self) -> None:
        self._waited = True
        self.say(f"another job runs {self.path}: waiting for its end")

    # ------------------------------------------------------------------------------------ the beginning

    def forget(self) -> None:
        """Remove what the last run of this recipe left, and what the command line names if a run made it."""
        if self.dry:
            return
        self._forget(self._remembered.last())
        for path in (self.named.junit, self.named.result):
            if path is not None:
                self._remembered.remove(path)

    def unreadable(self) -> None:
        """The recipe does not say what it writes: remove what any run of it left, whatever its assignments.

        Where there is no such recipe, nobody knows whose documents are whose, and those of all are removed.
        """
        for left in self._remembered.every(recipe=self.path.exists()) if not self.dry else ():
            self._forget(left)

    def _forget(self, left: Left) -> None:
        """Documents are removed, cards are put aside; weights stay until it is known how this run ends.

        Those of a job that this one has waited for stay, where it does not write them itself: whoever started
        that job has not read them yet.
        """
        if not self._waited:
            self._remembered.remove_documents(left)
        self._not_passed.forget(left.made)

    def known(self, recipe: Recipe, *, sound: bool) -> None:
        """What the recipe names, as soon as it is read; one that is not `sound` will not be run."""
        self.recipe, self.progress.steps = recipe, recipe.steps if sound else ()
        if self.dry:
            return
        self._not_passed.steps = recipe.steps
        for path in recipe.beside:
            self._remembered.remove(path)
        for path in self._places("step_summary"):  # as a run with other assignments left it
            for left in self._remembered.every(recipe=True):
                if digest := left.documents.get(self._remembered.as_kept(path)):
                    self._remembered.remove(path, digest)
        self._not_passed.begin(sound=sound)

    def check(self) -> None:
        """Raise UsageError where something else lies where they go, or is read by this run."""
        files.check_distinct([(kind.replace("_", " "), path) for kind, path in self._listed()])
        inputs = self._inputs()
        for _, path in self._listed():
            self._check_place(path, inputs)
        self._check_githubs(inputs)
        self._lock()
        made = [path for kind, path in self._listed() if kind != "step_summary"]
        runner.check_outputs(made, self.cache, self.how)
        self._cleared = True
        if not self.dry:
            self._keep()

    def _check_place(self, path: Path, inputs: Inputs) -> None:
        self.cache.check_output(path)
        files.check_output(path, inputs)

    def _check_githubs(self, inputs: Inputs) -> None:
        """Raise UsageError where GitHub's own summary would be added to what this run reads or makes."""
        if (summary := self._githubs()) is None:
            return
        if self._is_made(summary.path) or any(_is_same(path, summary.path) for _, path in self._listed()):
            raise UsageError(f"{summary.path} cannot be both the step summary and an output of this run")
        self.cache.check_output(summary.path)
        summary.check(inputs)

    # ------------------------------------------------------------------------------------------ the end

    def finish(self, cause: BaseException | None) -> None:
        """Write all of them, with what is known; once. Whoever waits for another job leaves what is its."""
        with self._writing:
            if self._over:
                if self.error is not None and not self.dry and not self._waits:
                    self._settle()  # a thread has written them, and the step has gone on since
                return
            self._over = True
            self.progress.end(None if cause is None else self._placed(cause))
            outcomes = self.progress.outcomes
            self.error = self.progress.error or runner.failure(outcomes, gates_of(outcomes))
            if not self.dry and not self._waits:
                self._settle()
                self._write()
            self.shown(self.account())

    def _placed(self, cause: BaseException) -> RebasinError:
        """What ended the run; of what came from outside, with the step that was running."""
        error = signals.ending(cause) if isinstance(cause, KeyboardInterrupt) else as_error(cause)
        step = self.progress.running
        if not isinstance(error, Interrupted) or self.dry or self._waits:
            return error
        found = copy.copy(error)
        place = "between steps" if self.progress.outcomes else "before the first step"
        found.message += f" in step {step.name} of {self.path}" if step else f" {place} of {self.path}"
        more = ", with more time" * isinstance(error, TimedOut)
        found.hint = error.hint or f"Run it again{more}: it goes on from there, finished steps are kept"
        return found

    def account(self) -> dict[str, Any]:
        """What became of the run, for programs."""
        about = self.about if self.dry else self.about | {"written": list(self._written)}
        return statements.account(self.progress, self.error, about)

    def _write(self) -> None:
        """The summary comes last: what is added stays. What was written before an error tells it, too."""
        told = self.error
        self._retract()
        for write in (self._attest, self._junit, self._result, self._summary):
            write()
            if self.error is not told:
                told = self.error
                self._settle()
                self._retract()
                self._junit()
                self._result()
        self._keep()

    def _retract(self) -> None:
        """What has failed is not attested."""
        if self.error is not None and self.recipe is not None and self.recipe.attest is not None:
            self._written.pop(str(self.recipe.attest), None)
            self._try(self.recipe.attest, self._remembered.remove)

    def _settle(self) -> None:
        self._not_passed.settle(self.error, self.progress)

    def _attest(self) -> None:
        if self.error is None and self.recipe is not None and self.recipe.attest is not None:
            text = statements.statement(self.recipe, self.progress.outcomes, self.about)
            self._try(self.recipe.attest, lambda path: self._put(path, text))

    def _junit(self) -> None:
        for path in self._places("junit"):
            text = statements.junit(self.progress.outcomes, self.error, str(self.path))
            self._try(path, partial(self._put, text=text))

    def _result(self) -> None:
        for path in self._places("result"):
            self._try(path, self._put_result)

    def _put_result(self, path: Path) -> None:
        self._written[str(path)] = None  # it says so itself
        self._put(path, json_format.dump(self.account()))

    def _summary(self) -> None:
        """To the files that are named; to GitHub's own where the command line names none."""
        for summary in (*map(StepSummary, self._places("step_summary")), self._githubs()):
            if summary is not None:
                self._try(summary.path, partial(self._add, summary), added=True)

    def _githubs(self) -> StepSummary | None:
        """GitHub's summary, where the run adds to it beside what the recipe names."""
        if self.named.step_summary is not None or (summary := github.step_summary()) is None:
            return None
        named = self._places("step_summary")
        return None if any(_is_same(path, summary.path) for path in named) else summary

    def _add(self, summary: StepSummary, path: Path) -> None:
        found, sections = statements.summary(self.progress.outcomes, self.error)
        if told := summary.add(found, sections, title=f"rebasin run {self.path}"):
            self.say(told)
        elif not _is_githubs(path):
            self._added.add(str(path))

    def _try(self, path: Path, write: Callable[[Path], object], *, added: bool = False) -> None:
        """Where a document cannot be written the run has failed, and the others say so."""
        if str(path) in self._failed or not self._may_write(path, added=added):
            return
        try:
            write(path)
        except (RebasinError, OSError) as cause:
            self._failed.add(str(path))
            self._written.pop(str(path), None)
            if self.error is None:
                self.error = as_error(cause)
            else:
                self.say(str(as_error(cause)))

    def _put(self, path: Path, text: str) -> None:
        with disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.cache.making([path]) as made:
            with staged(path.parent) as stage, stage.open(path) as file:
                file.write(text.encode("utf-8", "backslashreplace"))
            made.append(path)
        self._written[str(path)] = None

    # ----------------------------------------------------------------------------------- where they go

    def _listed(self) -> list[tuple[str, Path]]:
        kinds = ("junit", "attest", "result", "step_summary")
        return [(kind, path) for kind in kinds for path in self._places(kind)]

    def _places(self, kind: str) -> list[Path]:
        """The files of this kind: those of the command line, and of the recipe as far as it was read."""
        found = [getattr(source, kind, None) for source in (self.named, self.recipe)]
        once = {os.path.realpath(path): path for path in reversed(found) if path is not None}
        return list(once.values())[::-1]

    def _steps(self) -> Sequence[Step]:
        return () if self.recipe is None else self.recipe.steps

    def _inputs(self) -> Inputs:
        read = [self.path, *(file for step in self._steps() for file in (*step.reads, *step.awaited))]
        folders = tuple(place for place in read if place.is_dir())
        return Inputs(tuple(place for place in read if not place.is_dir()), folders, ())

    def _is_made(self, path: Path) -> bool:
        """Whether a step writes this file."""
        return any(_is_same(made, path) for step in self._steps() for made in step.files)

    def _may_write(self, path: Path, *, added: bool) -> bool:
        """Before all was checked: what is new or `added` to, and neither read nor made by a step."""
        if self._cleared:
            return True
        if self._is_made(path):
            return False
        try:
            self._check_place(path, self._inputs())
        except RebasinError:
            return False
        return added or str(path) in self._written or not os.path.lexists(path)

    def _keep(self) -> None:
        """Remember what will lie there, at the end what does; of a summary its digest: others add to it."""
        found: dict[Path, str] = {}
        for kind, path in self._listed():
            if kind != "step_summary":
                if not self._over or str(path) in self._written:
                    found[path] = ""
            elif str(path) in self._added:
                with contextlib.suppress(RebasinError):
                    found[path] = digests.of_file(path)
        self._remembered.keep(Left(found, self._not_passed.lying(self.progress.outcomes)))


def _is_githubs(path: Path) -> bool:
    given = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return bool(given) and _is_same(given, path)


def _is_same(one: str | Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
