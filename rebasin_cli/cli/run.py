"""`rebasin run`: a recipe of several commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..errors import TimedOut, UsageError
from . import ClickException, app
from . import _options as o
from ._gating import warn
from ._last_lines import of_recipe
from ._show import numbers, put, result, screen
from .barrier import show_brief, show_report

NONE = Path("RECIPE")  # where none is named
MEASURE = ("doctor", "eval", "inspect", "plane", "signature")  # a step of these is there for its figures


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
    from ..registry import numbers
    from ._vocabulary import perform, vocabulary

    if schema or from_command is not None:
        from ..commands import run as running

        words = vocabulary()
        text = running.schema_text(words) if schema else running.recipe_of(from_command, words, _remark)
        typer.echo(text, nl=False)
        return
    from ..commands.recipes.cache import of_run
    from ..commands.recipes.limits import Limits
    from ..commands.recipes.running import How
    from ..reports._gates import results
    from ..runtime.watching import Watch

    stdout, seconds = sys.stdout, None if time_limit is None else numbers.seconds(time_limit)

    def show(outcome: Any) -> None:
        if outcome.report is not None:
            warn(results(outcome.report, outcome.step.name, where=outcome.step.where), path)
        if not json:
            with redirect_stdout(stdout):
                _show(outcome)
        elif not quiet:  # the log of a job, whose stdout is a file
            _show(outcome, brief=True)

    named = {"junit": junit, "step_summary": step_summary, "result_file": result_file}
    named |= {"json": json and not key}
    path = recipe or NONE
    limits = Limits(frozenset(allow_env or ()), download) if untrusted else None
    with (
        of_recipe(path, _again(path, assign, download, untrusted, allow_env)),
        screen(quiet, verbose) as listener,
        of_run(cache, listener.say, stranger=untrusted) as records,
        limits.second_lock() if limits is not None else nullcontext(),
    ):
        how = How(again=no_cache, force=force, keep_going=keep_going)
        dry = dry_run or key
        documents = _documents(path, records, assign, named, how, listener.say, stdout, dry_run=dry)
        watch, over = Watch(documents.finish), TimedOut(f"the time limit of {time_limit} was reached")
        with watch.on(), documents.at_every_end(), watch.limited(seconds, over):
            if recipe is None:
                hint = "rebasin run RECIPE.yaml; docs/recipes.md shows one"
                raise UsageError("no recipe is named", hint=hint)
            if allow_env and not untrusted:
                hint = "Without that a recipe may read every variable that is no secret"
                raise UsageError("--allow-env is for --untrusted", hint=hint)
            if time_limit is not None and seconds is None:
                hint = "Write it like 90s, 20m or 2h"
                raise UsageError(f"--time-limit {time_limit!r} is no time", hint=hint)
            from ..commands import run as running  # heavy: what an earlier run left is gone by now

            asked, words = running.Asked(download, dry_run, limits), vocabulary()
            if key:
                told = running.key(documents, words, limits)
            else:
                told = running.run(documents, words, perform, asked, listener, watch, show=show)
    if key:
        typer.echo(told)
    elif dry_run and not json:
        _show_plan(told)


def _documents(
    recipe: Path,
    cache: Any,
    assign: list[str] | None,
    named: Mapping[str, Any],
    how: Any,
    say: Callable[[str], None],
    stdout: Any,
    *,
    dry_run: bool,
) -> Any:
    """What the run leaves; its JSON is printed at every end, where that is asked for."""
    from ..commands.recipes.documents import Documents, Named

    def shown(account: Any) -> None:
        if named["json"]:
            with redirect_stdout(stdout):
                result(account, True)

    files = Named(named["junit"], named["step_summary"], named["result_file"])
    return Documents(recipe, cache, files, tuple(assign or ()), how, say, shown, dry=dry_run)


def refused(arguments: Sequence[str], error: UsageError) -> None:
    """What a run leaves whose command line cannot be read, as far as it can."""
    from ..commands.recipes.cache import of_run
    from ..commands.recipes.running import How

    command = typer.main.get_command(app).commands["run"]
    lenient = {"resilient_parsing": True, "ignore_unknown_options": True, "allow_extra_args": True}
    given = command.make_context("run", list(arguments), **lenient).params
    if given["recipe"] is None or given["schema"] or given["from_command"]:
        return
    told, dry = (given["assign"], given, How(), _remark, sys.stdout), given["dry_run"]
    with of_run(given["cache"], _remark, stranger=given["untrusted"]) as records:
        documents = _documents(given["recipe"], records, *told, dry_run=dry)
        with suppress(UsageError), documents.at_every_end():
            documents.unreadable()
            raise error


def _again(
    recipe: Path, assign: list[str] | None, download: bool, untrusted: bool, allow_env: list[str] | None
) -> list[str]:
    """The command line without what it leaves beside the steps' outputs, and without secrets of addresses."""
    from ..commands.recipes.variables import public

    sets = [word for text in assign or () for word in ("--set", public(text))]
    variables = [word for name in allow_env or () for word in ("--allow-env", name)]
    switches = ["--download"] * download + ["--untrusted"] * untrusted
    return ["rebasin", "run", str(recipe), *sets, *switches, *variables]


def _remark(text: str) -> None:
    typer.echo(text, err=True)


def _show(outcome: Any, *, brief: bool = False) -> None:
    """A step on stdout: its report, its figures or its facts, below a line with its name.

    Of a report that is shown in brief, or that nothing was measured anew for, the figures and gates alone.
    """
    put(f"── {outcome.step.name}: {outcome.status}")
    command, unchanged = outcome.step.command.name, outcome.status == "unchanged"
    if (report := outcome.report) is not None:
        if brief or unchanged:
            show_brief(report)
        else:
            show_report(report)
    elif command in MEASURE and outcome.result:
        import_module(f".{command}", __package__).show(numbers(outcome.result))
    elif unchanged:
        result({"written": list(outcome.outputs) or None}, False)
    elif outcome.result:
        shown = ("written", "spec", "match", "proof", "repair", "answer", "text")
        result({key: value for key, value in outcome.result.items() if key in shown}, False)


def _show_plan(steps: Any) -> None:
    import shlex

    for step in steps:
        typer.echo(f"── {step['step']}: {step['state']}")
        typer.echo(shlex.join(step["command"]))
        result({key: step[key] for key in ("reads", "writes") if step[key]} | step.get("plan", {}), False)
