"""`rebasin signature`: how alike are the units that a permutation matches?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _groups as g
from . import _options as o
from . import app
from ._settings import command_line, settings_of
from ._show import result, screen


@app.command(rich_help_panel="Measure")
@g.shared(g.LOADING, g.NETWORK, g.KEPT, g.DATA, g.SAMPLES, g.METHOD, g.SCREEN)
def signature(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(metavar="A", help="The reference.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The model that is aligned to it.")],
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", show_default=False, help=f"How to align: {o.METHODS}, or none (wm)."),
    ] = None,
    perm: Annotated[Path | None, typer.Option(metavar="FILE", help="Use this permutation of B.")] = None,
    stability: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…",
            help="With am: the share of units that fewer samples match as the most do, such as "
            "2500,5000,10000.",
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(
            "--curve",
            metavar="FILE",
            show_default=False,
            help="Compare A with the middle of this trained curve (rebasin curve), as it is and once its "
            "units are matched, beside the middle of the straight line and the other end.",
        ),
    ] = None,
    bounds: Annotated[
        bool,
        typer.Option(
            "--bounds",
            help="Also how far networks between A and B can be from both, by Neuron Alignment's Theorem 3.1 "
            "(mlp, ReLU, no norms).",
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw mean ± std a layer, as PNG.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it as one HTML file.")
    ] = None,
    json: o.Json = False,
    force: o.Force = False,
    **options: Any,
) -> None:
    """Show how A's units correlate with those of B that they are matched to, before and after alignment.

    Mean and standard deviation over units, a line a permutation; units that are constant on the data are
    counted, and left out.

    Example: rebasin signature a.pt b.pt --data cifar10 --method am --plot signature.png
    """
    from ..commands.signature import Drawn
    from ..commands.signature import signature as run

    method = method or ("wm" if curve is None else "none")
    settings = settings_of(options, "loading", "network", "data", "search", method=method)
    counts = _counts(stability)
    drawn = Drawn(plot, html, force, command_line(context))
    with screen(options["quiet"], options["verbose"]) as listener:
        own = {"perm": perm, "counts": counts, "curve": curve, "bounded": bounds, "drawn": drawn}
        done = run(a, b, listener, **own, **settings)
    if json:
        result(done, True)
        return
    from ..reports.formats import terminal
    from ..reports.signature import document

    terminal.show(document(done, (a, b)))


def _counts(text: str | None) -> list[int]:
    from ..errors import UsageError

    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if len(set(parts)) < 2 or not all(re.fullmatch("0*[1-9][0-9]{0,9}", part) for part in parts):
        raise UsageError(
            f"--stability {text!r} is not two counts of samples or more", hint="Write 2500,5000,10000"
        )
    return [int(part) for part in parts]
