"""`rebasin barrier`: how good is the path between two models?"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._gating import end, gates_of
from ._settings import report_of, settings_of
from ._show import put, result, screen


@app.command(rich_help_panel="Measure")
@g.shared(
    *(g.GATES, g.MEASURING, g.LOADING, g.NETWORK, g.KEPT, g.DATA, g.SAMPLES, g.CHOOSING, g.SCORES, g.BINS),
    *(g.METHOD, g.GROUPS, g.POLISHING, g.RIDGE, g.FORMATS, g.SCREEN),
)
def barrier(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(metavar="A", help="The reference.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The model that is aligned to it.")],
    method: o.BestMethod = None,
    perm: Annotated[Path | None, typer.Option(metavar="FILE", help="Use this permutation of B.")] = None,
    curve: Annotated[
        list[Path] | None,
        typer.Option(
            "--curve",
            metavar="FILE",
            help="Measure this trained curve between A and B, too (rebasin curve); repeatable.",
            show_default=False,
        ),
    ] = None,
    attack: o.Attacks = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            "--pair",
            metavar="C,D",
            help="Measure these two as well, for means over pairs of seeds; repeatable.",
            show_default=False,
        ),
    ] = None,
    repair: o.Repair = "auto",
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="All training samples, also for the reset; 65 points a path, 25 where repaired."
        ),
    ] = False,
    interpolation: o.Interpolation = "linear",
    points: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=3,
            max=9_999,
            show_default=False,
            help="Points of every path, both ends included; odd, so that λ = ½ is one (25; 11 where "
            "repaired, 5 where distilled).",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        o.report(
            "--report", metavar="DIR", help="Write HTML, Markdown, JSON, JUnit and a PNG into this folder."
        ),
    ] = None,
    json: Annotated[bool, o.report("--json", help="Print the report as JSON.")] = False,
    step_summary: o.StepSummary = None,
    **options: Any,
) -> None:
    """Measure loss and accuracy along the straight path from A to B, naive and aligned.

    Both barrier definitions, train and test, with and without repair, beside controls: a random permutation,
    an ensemble, temperatures. Intervals are over test samples, and over pairs with --pair.

    Example: rebasin barrier a.pt b.pt --data cifar10 --report report/ --max-barrier 0.05
    """
    from ..commands.barrier import Along
    from ..commands.barrier import barrier as run
    from ..reports import _github

    own = {"method": method, "repair": repair, "full": full}
    settings = settings_of(options, "loading", "network", "data", "search", "repair", **own)
    gates, baseline, dry_run = gates_of(options), options["baseline"], options["dry_run"]
    more = {"summary": _github.step_summary(step_summary), "reads": [baseline] if baseline else []}
    written = report_of(context, report, options, force=options["force"], dry_run=dry_run, **more)
    pairs = [_two(text) for text in pair or ()]
    with screen(options["quiet"], options["verbose"]) as listener:
        made = run(
            a,
            b,
            written,
            listener,
            along=Along(interpolation, points, curve or (), attack or ()),
            perm=perm,
            pairs=pairs,
            gates=gates,
            **settings,
        )
    if dry_run:
        result(made, json)
        return
    show_report(made, as_json=json, quiet=options["quiet"])
    end(made, baseline)


def _two(text: str) -> tuple[Path, Path]:
    """`C,D` as two paths: an option that may be repeated takes one value."""
    from ..errors import UsageError

    first, comma, second = text.partition(",")
    if not (first and second) or "," in second:
        raise UsageError(f"--pair {text!r} is not two files", hint="Write them like --pair c.pt,d.pt")
    return Path(first), Path(second)


def show_brief(report: Any) -> None:
    """A report as a few lines: figures and gates."""
    from ..reports._brief import brief

    for text in brief(report):
        put(f"   {text}")


def show_report(report: Any, *, as_json: bool = False, quiet: bool = False) -> None:
    """A report on stdout, as a table or as JSON; beside JSON, for the log, in brief on stderr."""
    if as_json:
        from ..reports import json as json_format
        from ..reports._as_one import told_as_one

        typer.echo(json_format.render(report), nl=False)
        if not (quiet or told_as_one()):  # else a run tells of it
            with redirect_stdout(sys.stderr):
                show_brief(report)
        return
    from rich.console import Console

    from ..reports import terminal

    terminal.show(report, Console())
