"""`rebasin run` on files: a recipe checked as a whole, its steps run in order, its gates for a CI server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.digests import of_file
from ..errors import RebasinError, UsageError
from ..reports import _github
from ..runtime import files
from ..runtime.files import Inputs
from .job.listener import SILENT, Listener
from .recipes import familiar, judging, reading, running, schema, telling
from .recipes.cache import Cache
from .recipes.fetching import Fetcher
from .recipes.from_line import recipe_of
from .recipes.inputs import Fetch
from .recipes.recipe import Recipe, parse
from .recipes.running import How, Outcome, Perform
from .recipes.vocabulary import Command

__all__ = ["Asked", "How", "Run", "read", "recipe_of", "run", "schema_text"]


@dataclass(frozen=True)
class Asked:
    """How a recipe is run: `assignments` are those of --set, `cache` is the folder of what was done."""

    assignments: Sequence[str] = ()
    cache: Path = Path(".rebasin")
    download: bool = False
    dry_run: bool = False
    how: How = How()


@dataclass(frozen=True)
class Run:
    """A recipe and what became of its steps; `failure` is the error that the program ends with."""

    recipe: Recipe
    outcomes: Sequence[Outcome]
    account: Mapping[str, Any]

    @property
    def failure(self) -> RebasinError | None:
        return running.failure(self.outcomes, telling.gates_of(self.outcomes))


def read(path: Path, vocabulary: Mapping[str, Command], asked: Asked, fetch: Fetch) -> Recipe:
    """The recipe in a file. Raises UsageError with everything that is wrong with it, each with its line."""
    problems = reading.Problems()
    text = files.text(path, f"the recipe {path}", most=4 * reading.MAX_BYTES)
    try:
        root = reading.read(text, os.environ, problems)
        root = familiar.as_recipe(root, problems) if familiar.is_mergekit(root) else root
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", problems=error.problems, hint=error.hint) from None
    root = reading.with_set(root, list(asked.assignments), os.environ, problems)
    recipe = parse(root, vocabulary, problems, fetch=fetch)
    if problems:
        found = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        hint = "Editors find most of them as you type, by the schema: rebasin run --schema"
        message = f"{path} is not a recipe that can be run: {found}"
        raise UsageError(message, problems=problems.in_order(), hint=hint)
    return recipe


def run(
    path: Path,
    vocabulary: Mapping[str, Command],
    perform: Perform,
    asked: Asked,
    listener: Listener = SILENT,
    *,
    show: Callable[[Outcome], None] = lambda outcome: None,
) -> Run:
    """Check the recipe as a whole, then run its steps as command lines with `perform`.

    What fails is in the outcomes and not raised: gates are written first. A dry run gives the plan.
    """
    fetcher = Fetcher(asked.cache / "downloads", listener.say, allowed=asked.download)
    recipe = read(path, vocabulary, asked, fetcher.expected)
    cache = Cache(asked.cache, listener.say)
    about = {"recipe": str(path), "recipe_sha256": of_file(path), "set": list(asked.assignments)}
    cache.check()
    _check_beside(recipe, path)
    with running.folders(recipe.files, keep=not asked.dry_run):
        running.check_outputs(recipe.beside, cache, asked.how)
        if not asked.dry_run:
            _forget(recipe)
        try:
            if recipe.downloads:  # what is wrong without them is told before the first of them is fetched
                judging.check(recipe.steps, cache, perform, asked.how, coming=fetcher.missing)
                recipe = read(path, vocabulary, asked, fetcher)
            plans = judging.check(recipe.steps, cache, perform, asked.how)
        except RebasinError as error:
            if recipe.junit and not asked.dry_run:
                _put(recipe.junit, telling.refused(error, str(path)), cache)
            raise
        about["downloads"] = list(recipe.downloads)
        if asked.dry_run:
            return Run(recipe, (), about | {"steps": plan(recipe, cache, plans, asked.how)})
    outcomes = running.run(recipe.steps, cache, perform, listener, asked.how, show=show)
    written = _write(recipe, outcomes, cache, about)
    steps = [_told(outcome) for outcome in outcomes]
    times = {outcome.step.name: round(outcome.seconds, 3) for outcome in outcomes}
    return Run(recipe, outcomes, about | {"steps": steps, "written": written, "times": times})


def plan(
    recipe: Recipe, cache: Cache, plans: Mapping[str, Mapping[str, Any]], how: How
) -> list[dict[str, Any]]:
    """Every step: its command line, files, and its own plan where its models are there already."""
    told, waiting = [], set[str]()
    for step in recipe.steps:
        waits = sorted(waiting & set(step.needs))
        done = not waits and running.is_done(step, cache, how)
        state = "unchanged" if done else f"after {', '.join(waits)}" if waits else "runs"
        if not done:
            waiting.add(step.name)
        files = {"reads": step.reads, "writes": dict.fromkeys(step.writes.values())}
        told.append(
            {"step": step.name, "state": state, "command": ["rebasin", *step.line()]}
            | {name: [str(path) for path in paths] for name, paths in files.items()}
            | ({"plan": plans[step.name]} if step.name in plans else {})
        )
    return told


def _told(outcome: Outcome) -> dict[str, Any]:
    told = {
        "step": outcome.step.name,
        "status": outcome.status,
        "command": ["rebasin", *outcome.step.line()],
        "outputs": dict(outcome.outputs),
        "result": dict(outcome.result),
    }
    return told | ({"error": str(outcome.error)} if outcome.error else {})


def _write(recipe: Recipe, outcomes: Sequence[Outcome], cache: Cache, about: Mapping[str, Any]) -> list[str]:
    """The gates of all steps as JUnit and as a step summary, and the statement; the files written."""
    written = []
    if recipe.junit:
        written.append(_put(recipe.junit, telling.junit(outcomes), cache))
    if recipe.attest and all(outcome.ok for outcome in outcomes):
        written.append(_put(recipe.attest, telling.statement(recipe, outcomes, about), cache))
    summary = _github.step_summary(recipe.step_summary)
    if summary is not None:  # to GitHub's own, barriers have told their gates
        found = telling.gates_of(outcomes) if summary.asked else []
        summary.add(found, [telling.steps_table(outcomes)], title=f"rebasin run {about['recipe']}")
    return written


def _check_beside(recipe: Recipe, path: Path) -> None:
    """Raise UsageError where a file of the run as a whole may not be written: one that it reads, a device."""
    read = [path, *(file for step in recipe.steps for file in step.reads)]
    folders = tuple(place for place in read if place.is_dir())
    inputs = Inputs(tuple(place for place in read if not place.is_dir()), folders, ())
    for written in recipe.beside:
        files.check_output(written, inputs)
    if (summary := _github.step_summary(recipe.step_summary)) is not None and recipe.step_summary:
        files.check_output(summary.path, inputs)
    for step in recipe.steps:
        for written in step.files:
            if not written.is_dir():
                files.check_output(written, Inputs((path,)))


def _forget(recipe: Recipe) -> None:
    """What an earlier run said of itself: it must not pass for what this one says, however this one ends."""
    for path in recipe.beside:
        path.unlink(missing_ok=True)


def _put(path: Path, text: str, cache: Cache) -> str:
    from .job.outputs import write_files  # heavy, and a run that finds all in its cache writes nothing

    with cache.making([path]) as made:
        write_files([(path, text)], force=True)  # asked before anything ran
        made.append(path)
    return str(path)


def schema_text(vocabulary: Mapping[str, Command]) -> str:
    """The JSON Schema of recipes as text."""
    return json.dumps(schema.schema(vocabulary), indent=1, ensure_ascii=False) + "\n"
