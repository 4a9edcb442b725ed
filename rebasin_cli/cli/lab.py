"""`rebasin lab`: the papers' experiments, listed, shown and run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _options as o
from . import app
from ._show import put, result, screen

lab_app = typer.Typer(
    no_args_is_help=True,
    help="The papers' experiments: each claim confirmed, refuted or undecided, by its 95 % interval.",
)
app.add_typer(lab_app, name="lab", rich_help_panel="Measure")


@lab_app.command("list")
def list_(json: o.Json = False) -> None:
    """List the experiments, those of other packages included, with the papers that they are about.

    Example: rebasin lab list
    """
    from ..commands.lab import listed

    found = listed()
    if json:
        result({"experiments": found}, True)
        return
    for each in found:
        put(f"{each['name']:<20} {each['title']} ({each['paper']})")


@lab_app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment (`rebasin lab list`).")],
    json: o.Json = False,
) -> None:
    """Show what an experiment does and its parameters, each at both scales.

    Example: rebasin lab show teacher-barrier
    """
    from ..commands.lab import shown

    told = shown(name)
    if json:
        result(told, True)
        return
    put(f"{told['title']} ({told['paper']})")
    put(told["about"])
    put("minutes: " + ", ".join(f"{scale} {minutes:g}" for scale, minutes in told["minutes"].items()))
    for row in told["parameters"]:
        choices = f" ({', '.join(row['choices'])})" if row.get("choices") else ""
        put(f"  {row['name']} {row['type']}: {row['help']}{choices}")
        put(f"      small {_text(row['small'])}; full {_text(row['full'])}")


@lab_app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment, or all.")],
    scale: Annotated[
        str, typer.Option("--scale", help="small: within minutes; full: the paper's own numbers.")
    ] = "small",
    assign: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            show_default=False,
            help="Another value of a parameter (`rebasin lab show NAME`), lists with commas; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where NAME.md, NAME.png, NAME.json go.")
    ] = Path("lab"),
    data_root: o.DataRoot = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Of all that is drawn.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what is there, go on with what was interrupted.")
    ] = False,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Run an experiment, or all of them, and write a page, a picture and JSON of each.

    A claim that is refuted is a result: the exit code is 0.

    Example: rebasin lab run overlap --set teachers=5,10
    """
    from ..commands.lab import Asked
    from ..commands.lab import run as running

    asked = Asked(scale, tuple(assign or ()), seed, data_root, out, force, resume, dry_run)
    with screen(quiet, verbose) as listener:
        made = running(name, asked, listener)
    if json:
        result({"experiments": made}, True)
        return
    for each in made:
        _show_plan(each) if dry_run else _show(each)


def _show_plan(plan: Mapping[str, Any]) -> None:
    put(f"── {plan['experiment']}: about {plan['minutes']:g} minutes")
    for name, value in plan["parameters"].items():
        put(f"  {name:<18} {_text(value)}")


def _show(made: Mapping[str, Any]) -> None:
    put(f"── {made['name']}: {made['title']}")
    for claim in made["claims"]:
        between = claim["interval"]
        sure = f" ({between[0]:.4g} … {between[1]:.4g})" if between and between[0] != between[1] else ""
        number = "–" if claim["estimate"] is None else f"{claim['estimate']:.4g}{sure}"
        put(f"  {claim['verdict']:<10} {claim['source']}: {claim['says']}. {claim['about']}: {number}")
    for path in made["written"]:
        put(f"  written    {path}")


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
