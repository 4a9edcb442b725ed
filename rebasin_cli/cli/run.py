"""`rebasin run`: a recipe of several commands."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _options as o
from . import app
from ._show import numbers, result, screen

MEASURE = ("doctor", "eval", "inspect", "plane", "signature")  # a step of these is there for its figures


@app.command(rich_help_panel="Align and merge")
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
    from ..commands import run as running
    from ..errors import UsageError
    from ._vocabulary import perform, vocabulary

    words = vocabulary()
    if schema:
        typer.echo(running.schema_text(words), nl=False)
        return
    if from_command is not None:
        typer.echo(running.recipe_of(from_command, words, lambda text: typer.echo(text, err=True)), nl=False)
        return
    if recipe is None:
        raise UsageError("no recipe is named", hint="rebasin run RECIPE.yaml; docs/recipes.md shows one")
    how = running.How(again=no_cache, force=force, keep_going=keep_going)
    asked = running.Asked(tuple(assign or ()), cache, download, dry_run, how)
    stdout = sys.stdout

    def show(outcome: Any) -> None:
        if not json:
            with redirect_stdout(stdout):
                _show(outcome)

    with screen(quiet, verbose) as listener:
        done = running.run(recipe, words, perform, asked, listener, show=show)
    if json:
        result(done.account, True)
    elif dry_run:
        _show_plan(done.account["steps"])
    if done.failure is not None:
        raise done.failure


def _show(outcome: Any) -> None:
    """A step on stdout: its report, its figures or its facts, below a line with its name."""
    typer.echo(f"── {outcome.step.name}: {outcome.status}")
    command = outcome.step.command.name
    if outcome.status == "unchanged" and command not in MEASURE:
        result({"written": list(outcome.outputs) or None}, False)
    elif outcome.result.get("schema", "").startswith("rebasin.report/"):
        import json

        from ..reports import json as json_format
        from .barrier import show_report

        show_report(json_format.load(json.dumps(outcome.result)))
    elif command in MEASURE and outcome.result:
        import_module(f".{command}", __package__).show(numbers(outcome.result))
    elif outcome.result:
        shown = ("written", "spec", "match", "proof", "repair", "answer", "text")
        result({key: value for key, value in outcome.result.items() if key in shown}, False)


def _show_plan(steps: Any) -> None:
    import shlex

    for step in steps:
        typer.echo(f"── {step['step']}: {step['state']}")
        typer.echo(shlex.join(step["command"]))
        result({key: step[key] for key in ("reads", "writes") if step[key]} | step.get("plan", {}), False)
