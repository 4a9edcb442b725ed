"""`rebasin run`: a recipe of several commands."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from ..errors import Interrupted, RebasinError, UsageError
from ..registry.results import dumped
from ..runtime.text import LONGEST
from .screen import ClickException, screen

# The folder that a CI server has checked out, from which a person at home starts.
TOPS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
NONE = Path("RECIPE")  # where none is named


class LeavesDocuments(TyperCommand):
    """Also a command line that cannot be read leaves its documents, and none of an earlier run."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **more: Any) -> Any:
        given = list(args)
        try:
            return super().make_context(info_name, args, parent, **more)
        except ClickException as error:
            if not more.get("resilient_parsing"):
                refused(self, given, UsageError(error.format_message()))
            raise


def perform(given: Mapping[str, Any]) -> None:
    """Run a recipe as it was asked for (`commands.run.Run`).

    What an earlier run left is gone before anything heavy is imported, and the screen is used all the while.
    """
    from ..commands.recipes.vocabulary import vocabulary
    from . import steps

    if given["schema"] or given["from_command"] is not None:
        from ..commands import run as running

        words = vocabulary()
        text = (
            running.schema_text(words)
            if given["schema"]
            else running.recipe_of(given["from_command"], words, _remark)
        )
        typer.echo(text, nl=False)
        return
    from ..commands.recipes.cache import of_run
    from ..commands.recipes.limits import Limits
    from ..runtime.stop_watch import Watch

    path, stdout, quiet = given["recipe"] or NONE, sys.stdout, given["quiet"]
    limits = Limits(frozenset(given["allow_env"]), given["download"]) if given["untrusted"] else None
    variables: dict[str, str] = {}
    digests, plan = "", list[dict[str, Any]]()
    with (
        of_recipe(path, _again(given), variables),
        screen(quiet, given["verbose"]) as listener,
        of_run(given["cache"], listener.say, stranger=given["untrusted"]) as records,
        limits.second_lock() if limits is not None else nullcontext(),
    ):
        documents = _documents(given, records, listener.say, stdout)
        documents.variables, watch = variables, Watch(documents.finish)
        with watch.on(), documents.at_every_end(), watch.within(given["time_limit"]):
            _check(given)
            from ..commands import run as running  # heavy: what an earlier run left is gone by now

            asked, words = running.Settings(given["download"], given["dry_run"], limits), vocabulary()
            if given["key"]:
                digests = running.key(documents, words, limits)
            else:
                show = partial(steps.tell, recipe=path, stdout=stdout, as_json=given["json"], quiet=quiet)
                plan = running.run(documents, words, steps.perform, asked, listener, watch, show=show)
    if given["key"]:
        typer.echo(digests)
    elif given["dry_run"] and not given["json"]:
        steps.show_plan(plan)


def _documents(given: Mapping[str, Any], cache: Any, say: Callable[[str], None], stdout: Any) -> Any:
    """What the run leaves that is `given` by its options; its JSON is printed at every end, if asked for."""
    from ..commands.recipes.documents import Documents, Named
    from ..commands.recipes.runner import How

    def shown(account: Any) -> None:
        if given["json"] and not given["key"]:
            with redirect_stdout(stdout):
                typer.echo(dumped(account), nl=False)

    files = Named(given["junit"], given["step_summary"], given["result_file"])
    how = How(again=given["no_cache"], force=given["force"], keep_going=given["keep_going"])
    path, sets, dry = given["recipe"] or NONE, tuple(given["assign"] or ()), given["dry_run"] or given["key"]
    return Documents(path, cache, files, sets, how, say, shown, dry=dry)


def _check(given: Mapping[str, Any]) -> None:
    """Raise UsageError for what is wrong whatever the recipe says."""
    from ..registry.options import seconds

    if given["recipe"] is None:
        hint = "rebasin run RECIPE.yaml; docs/recipes.md shows one"
        raise UsageError("no recipe is named", hint=hint)
    if given["allow_env"] and not given["untrusted"]:
        hint = "Without that a recipe may read every variable that is no secret"
        raise UsageError("--allow-env is for --untrusted", hint=hint)
    if (limit := given["time_limit"]) is not None and seconds(limit) is None:
        raise UsageError(f"--time-limit {limit!r} is no time", hint="Write it like 90s, 20m or 2h")


def refused(command: TyperCommand, arguments: Sequence[str], error: UsageError) -> None:
    """What a run leaves whose command line cannot be read, as far as it can."""
    from ..commands.recipes.cache import of_run

    lenient: dict[str, Any] = {
        "resilient_parsing": True,
        "ignore_unknown_options": True,
        "allow_extra_args": True,
    }
    given = command.make_context("run", list(arguments), **lenient).params
    if given["recipe"] is None or given["schema"] or given["from_command"]:
        return
    with of_run(given["cache"], _remark, stranger=given["untrusted"]) as records:
        documents = _documents(given, records, _remark, sys.stdout)
        with suppress(UsageError), documents.at_every_end():
            documents.unreadable()
            raise error


def _again(given: Mapping[str, Any]) -> list[str]:
    """The command line without what it leaves beside the steps' outputs, and without secrets of addresses."""
    from ..commands.recipes.reader import public

    sets = [word for text in given["assign"] or () for word in ("--set", public(text))]
    names = [text.partition("=")[0] for text in given["allow_env"] or ()]  # no value is shown
    variables = [word for name in names for word in ("--allow-env", name)]
    switches = ["--download"] * given["download"] + ["--untrusted"] * given["untrusted"]
    return ["rebasin", "run", str(given["recipe"] or NONE), *sets, *switches, *variables]


def _remark(text: str) -> None:
    typer.echo(text, err=True)


@contextmanager
def of_recipe(recipe: Path, line: Sequence[str], variables: Mapping[str, str]) -> Iterator[None]:
    """What fails within says that its lines are of this recipe, and how it is run again.

    `variables` are those of the environment that it had by then.
    """
    try:
        yield
    except RebasinError as error:
        error.file = str(recipe)
        if not isinstance(error, UsageError | Interrupted):
            error.closing = (*error.closing, at_home(line, variables))
        raise


def at_home(
    line: Sequence[str], variables: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> str:
    """The command line as it is typed at the top of what was checked out.

    One that would be cut is not told: what is left of it could mean something else when it is pasted.
    """
    given = "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items())
    command = f"{_change(environ)}{given}{shlex.join(line)}"
    told = command if len(command) < LONGEST // 2 else "the same command line, which is too long to be told"
    return f"See it at home: {told}"


def _change(environ: Mapping[str, str]) -> str:
    for top in filter(None, map(environ.get, TOPS)):
        with suppress(ValueError, OSError):  # another drive; a folder that is gone
            inside = os.path.relpath(os.getcwd(), os.path.realpath(top))
            if inside != os.curdir and inside.partition(os.sep)[0] != os.pardir:
                return f"cd {shlex.quote(inside)} && "
    return ""
