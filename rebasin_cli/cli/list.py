"""`rebasin list`: what there is to name in an option."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _options as o
from . import app, together
from ._show import put, result


@together
@app.command(name="list", rich_help_panel="Look")
def list_(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="methods, specs, nets, data, reports.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="The options of every method, too.")
    ] = False,
    json: o.Json = False,
) -> None:
    """List methods, specs, nets, data sets and report formats, those of other packages included.

    Example: rebasin list methods --verbose
    """
    from ..commands.list import listed, option_lines

    found = listed(kind)
    if json:
        result(found, True)
        return
    for name, things in found.items():
        put(f"{name}:")
        for thing in things:
            put(f"  {thing['name']:<24} {thing['summary']}")
            if verbose and "broken" in thing:
                put(f"      {thing['broken']}")
            for line in option_lines(thing.get("options", ())) if verbose else ():
                put(f"      {line}")
