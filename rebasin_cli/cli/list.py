"""`rebasin list`: what there is to name in an option."""

from __future__ import annotations

from typing import Annotated

import typer

from . import app, together

KINDS = ("methods", "specs", "nets", "data", "reports")


@together
@app.command(name="list", rich_help_panel="Look")
def list_(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help=", ".join(KINDS))] = None,
) -> None:
    """List methods, specs, nets, data sets and report formats, those of other packages included."""
    from .. import datasets, matchers, nets, reports
    from ..errors import unknown
    from ..spec import library

    if kind is not None and kind not in KINDS:
        raise unknown("kind", kind, KINDS)

    def summaries(registry) -> dict[str, str]:
        return {name: registry.summary(name) for name in registry.names()}

    found = {
        "methods": lambda: summaries(matchers.registry),
        "specs": lambda: {name: spec.description for name, spec in library.builtin().items()},
        "nets": lambda: {
            variant: nets.registry.summary(name)
            for name in nets.registry.names()
            for variant in nets.registry.get(name).VARIANTS
        },
        "data": lambda: summaries(datasets.registry),
        "reports": lambda: summaries(reports.registry),
    }
    for name in [kind] if kind else KINDS:
        typer.echo(f"{name}:")
        for item, summary in found[name]().items():
            typer.echo(f"  {item:<24} {summary}")
