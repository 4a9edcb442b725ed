"""`rebasin run`: a recipe of several commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..errors import UsageError
from . import ClickException, _steps, app
from . import _options as o
from ._last_lines import of_recipe
from ._show import result, screen

NONE = Path("RECIPE")  # where none is named


class _Run(TyperCommand):
    """Also a command line that cannot be read leaves its documents, and none of an earlier run."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **more: Any) -> Any:
        given = list(args)
        try:
            return super().make_context(info_name, args, parent, **more)
        except ClickException as error:
            if not more.get("resilient_parsing"):
                refused(given, UsageError(error.format_message()))
            raise


@app.command(cls=_Run, rich_help_panel="Align and merge")
def run(
    context: typer.Context,
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="A YAML file (docs/recipes.md), or mergekit's.")
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            show_default=False,
            help="Another value, such as steps.merge.method=ste-mm or defaults.seed=3; repeatable.",
        ),
    ] = None,
    cache: Annotated[
        Path, typer.Option("--cache", metavar="DIR", help="Where it is kept what steps have made.")
    ] = Path(".rebasin"),
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Run every step again, also those that nothing changed for.")
    ] = False,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="After a gate that is not met, run what does not need that step."),
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the pinned files of hf: and https:, also for --dry-run.")
    ] = False,
    untrusted: Annotated[
        bool,
        typer.Option("--untrusted", help="The recipe is a stranger's: no code of files, nothing outside."),
    ] = False,
    allow_env: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-env",
            metavar="NAME",
            show_default=False,
            help="A variable that a stranger's recipe may read; repeatable.",
        ),
    ] = None,
    from_command: Annotated[
        str | None,
        typer.Option(
            "--from-command",
            metavar="LINE",
            show_default=False,
            help="Print the recipe that equals this command line.",
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of recipes, for editors.")
    ] = False,
    key: Annotated[
        bool,
        typer.Option("--key", help="Print the key of a CI server's cache for this run, and run nothing."),
    ] = False,
    junit: Annotated[
        Path | None,
        o.report("--junit", metavar="FILE", help="Write what became of the steps and gates as JUnit."),
    ] = None,
    step_summary: o.StepSummary = None,
    result_file: Annotated[
        Path | None,
        o.report("--result", metavar="FILE", help="Write what became of every step as JSON."),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            "--time-limit",
            metavar="TIME",
            show_default=False,
            help="End the run after so long (90s, 20m, 2h) with exit code 124; what it has found is kept.",
        ),
    ] = None,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Run the commands of a recipe in their order, those again whose files, options or program changed.

    All of it is checked before anything runs. Exit code 1 where a gate of a step is not met.

    Example: rebasin run merge.yaml --set defaults.seed=3
    """
    from ._vocabulary import perform, vocabulary

    if schema or from_command is not None:
        from ..commands import run as running

        words = vocabulary()
        text = running.schema_text(words) if schema else running.recipe_of(from_command, words, _remark)
        typer.echo(text, nl=False)
        return
    from ..commands.recipes.cache import of_run
    from ..commands.recipes.limits import Limits
    from ..runtime.watching import Watch

    given, path, stdout = context.params, recipe or NONE, sys.stdout
    limits = Limits(frozenset(allow_env or ()), download) if untrusted else None
    variables: dict[str, str] = {}
    with (
        of_recipe(path, _again(given), variables),
        screen(quiet, verbose) as listener,
        of_run(cache, listener.say, stranger=untrusted) as records,
        limits.second_lock() if limits is not None else nullcontext(),
    ):
        documents = _documents(given, records, listener.say, stdout)
        documents.variables, watch = variables, Watch(documents.finish)
        with watch.on(), documents.at_every_end(), watch.within(time_limit):
            _check(given)
            from ..commands import run as running  # heavy: what an earlier run left is gone by now

            asked, words = running.Asked(download, dry_run, limits), vocabulary()
            if key:
                told = running.key(documents, words, limits)
            else:
                show = partial(_steps.tell, recipe=path, stdout=stdout, as_json=json, quiet=quiet)
                told = running.run(documents, words, perform, asked, listener, watch, show=show)
    if key:
        typer.echo(told)
    elif dry_run and not json:
        _steps.show_plan(told)


def _documents(given: Mapping[str, Any], cache: Any, say: Callable[[str], None], stdout: Any) -> Any:
    """What the run leaves that is `given` by its options; its JSON is printed at every end, if asked for."""
    from ..commands.recipes.documents import Documents, Named
    from ..commands.recipes.running import How

    def shown(account: Any) -> None:
        if given["json"] and not given["key"]:
            with redirect_stdout(stdout):
                result(account, True)

    files = Named(given["junit"], given["step_summary"], given["result_file"])
    how = How(again=given["no_cache"], force=given["force"], keep_going=given["keep_going"])
    path, sets, dry = given["recipe"] or NONE, tuple(given["assign"] or ()), given["dry_run"] or given["key"]
    return Documents(path, cache, files, sets, how, say, shown, dry=dry)


def _check(given: Mapping[str, Any]) -> None:
    """Raise UsageError for what is wrong whatever the recipe says."""
    from ..registry.numbers import seconds

    if given["recipe"] is None:
        hint = "rebasin run RECIPE.yaml; docs/recipes.md shows one"
        raise UsageError("no recipe is named", hint=hint)
    if given["allow_env"] and not given["untrusted"]:
        hint = "Without that a recipe may read every variable that is no secret"
        raise UsageError("--allow-env is for --untrusted", hint=hint)
    if (limit := given["time_limit"]) is not None and seconds(limit) is None:
        raise UsageError(f"--time-limit {limit!r} is no time", hint="Write it like 90s, 20m or 2h")


def refused(arguments: Sequence[str], error: UsageError) -> None:
    """What a run leaves whose command line cannot be read, as far as it can."""
    from ..commands.recipes.cache import of_run

    command = typer.main.get_command(app).commands["run"]
    lenient = {"resilient_parsing": True, "ignore_unknown_options": True, "allow_extra_args": True}
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
    from ..commands.recipes.variables import public

    sets = [word for text in given["assign"] or () for word in ("--set", public(text))]
    variables = [word for name in given["allow_env"] or () for word in ("--allow-env", name)]
    switches = ["--download"] * given["download"] + ["--untrusted"] * given["untrusted"]
    return ["rebasin", "run", str(given["recipe"] or NONE), *sets, *switches, *variables]


def _remark(text: str) -> None:
    typer.echo(text, err=True)
