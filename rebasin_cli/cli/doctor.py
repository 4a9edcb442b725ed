"""`rebasin doctor`: what to expect of merging two models, before hours are spent."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..runtime.text import line
from . import _groups as g
from . import _options as o
from . import app, together
from ._settings import command_line, settings_of
from ._show import result, screen


@together
@app.command(rich_help_panel="Measure")
@g.shared(g.LOADING, g.NETWORK, g.KEPT, g.DATA, g.SAMPLES, g.SCREEN)
def doctor(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(metavar="A")],
    b: Annotated[Path, typer.Argument(metavar="B")],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it as one HTML file.")
    ] = None,
    json: o.Json = False,
    force: o.Force = False,
    **options: Any,
) -> None:
    """Look at two models before hours are spent: kin or strangers, and what a merge will need.

    Ends with a verdict and the command to run next. It is advice: the exit code is 0 whatever it says.
    Without data, or a network to run, it says what it could not look at.

    Example: rebasin doctor a.pt b.pt --data cifar10
    """
    from ..commands.doctor import Page
    from ..commands.doctor import doctor as run

    first = os.environ.get("RANK", "0") in ("", "0")  # processes that run together are alike
    page = None if html is None or not first else Page(html, force, command_line(context))
    settings = settings_of(options, "loading", "network", "data")
    with screen(options["quiet"], options["verbose"]) as listener:
        done = run(a, b, listener, page=page, **settings)
    if json:
        result(done, True)
        return
    show(done)


def show(done: Mapping[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    console.print(line(f"{done['files'][0]} and {done['files'][1]}"), style="bold")
    for fact in done["facts"].values():
        console.print(line(f" {'!' if fact['warns'] else '·'} {fact['says']}"), soft_wrap=True)
    if any("midpoint" in row for row in done["words"]):
        table = Table(box=box.SIMPLE)
        table.add_column("word", overflow="fold")
        for name in ("units", "dead A", "dead B", "corr.", "matched", "½ naive", "½ aligned"):
            table.add_column(name, justify="right")
        for row in done["words"]:
            alike, middle = (row["before"]["mean"], row["after"]["mean"]), row["midpoint"]
            figures = (*alike, middle["naive"], middle["aligned"])
            counts = (row["units"], row["dead_a"], row["dead_b"])
            table.add_row(line(row["word"]), *(f"{count:,}" for count in counts), *map(_figure, figures))
        console.print(table)
        console.print(
            " corr., matched: correlation of units, as they are and matched. ½: standard deviation of the "
            "midpoint's activations over the endpoints'.\n",
        )
    for text in done["unseen"]:
        console.print(line(f" not looked at: {text}" if ": " in text else f" {text}"), soft_wrap=True)
    console.print(line(f"verdict  {done['verdict']}"), style="bold")
    console.print(line(f"         {done['advice']}"), soft_wrap=True)
    console.print(line(f"next     {done['next']}"), soft_wrap=True)


def _figure(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"
