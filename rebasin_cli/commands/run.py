"""`rebasin run` on files: a recipe checked as a whole, its steps run in order, its gates for a CI server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.digests import of_file
from ..errors import UsageError
from ..registry.options import PLAIN, READS, TRUSTS, WRITES, argument, option
from ..reports.github import as_one
from ..runtime import files
from ..runtime.files import Inputs
from ..runtime.stop_watch import Watch
from ..session.listener import SILENT, Listener
from ..session.outcomes import REPORT, Answer, Screen, Summary, Weights
from .recipes import dry_runs, familiar, reader, runner, schema, statements
from .recipes.cache import Cache
from .recipes.documents import Documents
from .recipes.downloads import Fetcher
from .recipes.from_line import recipe_of
from .recipes.inputs import Fetch
from .recipes.limits import HINT, MOST_BYTES, Limits
from .recipes.reader import Had
from .recipes.recipe import Recipe, parse
from .recipes.runner import How, Outcome, Perform
from .recipes.steps import Step
from .recipes.vocabulary import Command

__all__ = ["Settings", "read", "recipe_of", "run", "schema_text"]


PANEL = "Align and merge"
STEP = False


@dataclass(frozen=True, kw_only=True)
class Run(Screen):
    """Run the commands of a recipe in their order, those again whose files, options or program changed.

    All of it is checked before anything runs. Exit code 1 where a gate of a step is not met.

    Example: rebasin run merge.yaml --set defaults.seed=3
    """

    recipe: Path | None = argument(
        "RECIPE", "A YAML file (docs/recipes.md), or mergekit's.", default=None, role=READS
    )
    assign: tuple[str, ...] = option(
        (),
        "Another value, such as steps.merge.method=ste-mm or defaults.seed=3; repeatable.",
        flag="--set",
        metavar="KEY=VALUE",
        role=PLAIN,
    )
    cache: Path = option(
        Path(".rebasin"), "Where it is kept what steps have made.", metavar="DIR", role=WRITES
    )
    no_cache: bool = option(False, "Run every step again, also those that nothing changed for.", role=PLAIN)
    keep_going: bool = option(
        False, "After a gate that is not met, run what does not need that step.", role=PLAIN
    )
    download: bool = option(
        False, "Fetch the pinned files of hf: and https:, also for --dry-run.", role=TRUSTS
    )
    untrusted: bool = option(
        False, "The recipe is a stranger's: no code of files, nothing outside.", role=PLAIN
    )
    allow_env: tuple[str, ...] = option(
        (), "A variable that a stranger's recipe may read; repeatable.", metavar="NAME", role=TRUSTS
    )
    from_command: str | None = option(
        None, "Print the recipe that equals this command line.", metavar="LINE", role=PLAIN
    )
    schema: bool = option(False, "Print the JSON Schema of recipes, for editors.", role=PLAIN)
    key: bool = option(
        False, "Print the key of a CI server's cache for this run, and run nothing.", role=PLAIN
    )
    junit: Path | None = option(
        None,
        "Write what became of the steps and gates as JUnit.",
        metavar="FILE",
        panel=REPORT,
        role=WRITES,
    )
    step_summary: Path | None = Summary.step_summary
    result_file: Path | None = option(
        None,
        "Write what became of every step as JSON.",
        flag="--result",
        metavar="FILE",
        panel=REPORT,
        role=WRITES,
    )
    time_limit: str | None = option(
        None,
        "End the run after so long (90s, 20m, 2h) with exit code 124; what it has found is kept.",
        metavar="TIME",
        role=PLAIN,
    )
    force: bool = Weights.force
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


@dataclass(frozen=True)
class Settings:
    """How a recipe is run, beyond what its documents know."""

    download: bool = False
    dry_run: bool = False
    limits: Limits | None = None  # of a recipe of a stranger's


def read(
    documents: Documents, vocabulary: Mapping[str, Command], fetch: Fetch, limits: Limits | None = None
) -> Recipe:
    """The recipe, which its documents hear of. Raises UsageError with all that is wrong, by its lines.

    `limits` are those of a recipe of a stranger's.
    """
    path, problems = documents.path, reader.Problems()
    had = Had(os.environ, documents.variables)
    try:
        if limits is not None:
            limits.check_start(path)
        most = 4 * reader.MAX_BYTES if limits is None else MOST_BYTES
        text = files.text(path, f"the recipe {path}", most=most)
        try:
            variables = None if limits is None else limits.variables
            root = reader.read(text, had, problems, allowed=variables)
            root = familiar.as_recipe(root, problems) if familiar.is_mergekit(root) else root
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", problems=error.problems, hint=error.hint) from None
    except UsageError:
        documents.unreadable()
        raise
    root = reader.with_set(root, list(documents.assignments), had, problems)
    recipe = parse(root, vocabulary, problems, fetch=fetch, limits=limits)
    documents.known(recipe, sound=not problems)
    if problems:
        found = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        hint = "Editors find most of them as you type, by the schema: rebasin run --schema"
        hint = HINT if limits is not None and limits.refused else hint
        message = f"{path} is not a recipe that can be run: {found}"
        raise UsageError(message, problems=problems.in_order(), hint=hint)
    return recipe


def run(
    documents: Documents,
    vocabulary: Mapping[str, Command],
    perform: Perform,
    settings: Settings,
    listener: Listener = SILENT,
    watch: Watch | None = None,
    *,
    show: Callable[[Outcome], None] = lambda outcome: None,
) -> list[dict[str, Any]]:
    """Check the recipe as a whole, then run its steps with `perform`.

    What becomes of them is told to the documents; a step that fails is no error here. The plan of a dry run.
    """
    cache, how, watch = documents.cache, documents.how, watch or Watch(documents.finish)
    progress = documents.progress

    def limited(step: Step) -> AbstractContextManager[object]:
        return watch.within(step.time_limit)

    stranger = settings.limits is not None
    fetcher = Fetcher(cache.folder / "downloads", listener.say, allowed=settings.download, stranger=stranger)
    cache.check()
    recipe = read(documents, vocabulary, fetcher.expected, settings.limits)
    documents.about["recipe_sha256"] = of_file(documents.path)
    _check_steps(recipe, documents)
    with runner.folders(recipe.files, keep=not settings.dry_run):
        documents.check()
        if recipe.downloads:  # what is wrong without them is told before the first of them is fetched
            coming = fetcher.missing
            dry_runs.check(
                recipe.steps, cache, perform, how, coming=coming, progress=progress, limited=limited
            )
            recipe = read(documents, vocabulary, fetcher, settings.limits)
        plans = dry_runs.check(recipe.steps, cache, perform, how, progress=progress, limited=limited)
        documents.about["downloads"] = list(recipe.downloads)
        if settings.dry_run:
            documents.about["steps"] = found = plan(recipe, cache, plans, how)
            return found
    with as_one():
        runner.run(recipe.steps, cache, perform, listener, how, show=show, progress=progress, limited=limited)
    return []


def key(documents: Documents, vocabulary: Mapping[str, Command], limits: Limits | None = None) -> str:
    """The name under which a CI server keeps what this run makes; nothing is run, fetched or written."""
    elsewhere = Fetcher(documents.cache.folder / "downloads", SILENT.say, allowed=True)
    return statements.of(read(documents, vocabulary, elsewhere.expected, limits))


def plan(
    recipe: Recipe, cache: Cache, plans: Mapping[str, Mapping[str, Any]], how: How
) -> list[dict[str, Any]]:
    """Every step: its command line, files, and its own plan where its models are there already."""
    told, waiting = [], set[str]()
    for step in recipe.steps:
        waits = sorted(waiting & set(step.needs))
        done = not waits and runner.is_done(step, cache, how)
        state = "unchanged" if done else f"after {', '.join(waits)}" if waits else "runs"
        if not done:
            waiting.add(step.name)
        files = {"reads": step.reads, "writes": dict.fromkeys(step.writes.values())}
        told.append(
            {"step": step.name, "state": state, "command": step.shown()}
            | {name: [str(path) for path in paths] for name, paths in files.items()}
            | ({"plan": plans[step.name]} if step.name in plans else {})
        )
    return told


def _check_steps(recipe: Recipe, documents: Documents) -> None:
    """Raise UsageError where a step would write the recipe itself, or a record of the cache."""
    for step in recipe.steps:
        for written in step.files:
            documents.cache.check_output(written)
            if not written.is_dir():
                files.check_output(written, Inputs((documents.path,)))


def schema_text(vocabulary: Mapping[str, Command]) -> str:
    """The JSON Schema of recipes as text."""
    return json.dumps(schema.schema(vocabulary), indent=1, ensure_ascii=False) + "\n"
