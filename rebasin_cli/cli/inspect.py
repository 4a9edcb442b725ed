"""`rebasin inspect`: what a checkpoint holds."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..runtime.text import many
from . import _options as o
from . import app, together
from ._show import put


@together
@app.command(rich_help_panel="Look")
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
    json: o.Json = False,
) -> None:
    """Show envelope, tensors, dtypes, the architecture's guess and provenance.

    Example: rebasin inspect merged.safetensors
    """
    from ..commands.inspect import inspect as look

    seen = look(file, key=key, unsafe_load=unsafe_load)
    if json:
        typer.echo(json_module.dumps(seen, indent=2))
        return
    show(seen)


def show(seen: Mapping[str, Any]) -> None:
    guess = seen["architecture"]
    dtypes = ", ".join(f"{count} × {dtype}" for dtype, count in seen["dtypes"].items())
    tensors = many(len(seen["tensors"]), "tensor")
    put(f"{seen['file']}: {seen['format']}, {tensors}, {seen['parameters']:,} numbers")
    put(f"dtypes        {dtypes}")
    for note in seen["notes"]:
        put(f"note          {note}")
    if guess["spec"]:
        words = f"{many(guess['permutations'], 'permutation')}, 10^{guess['log10_symmetries']} symmetries"
        put(f"architecture  {guess['spec']} ({guess['description']}): {words}")
    else:
        put(f"architecture  {guess['reason']}")
    for name, digest, of in (
        ("sha256", seen["sha256"], "of all values, whatever file holds them"),
        ("file sha256", seen["file_sha256"], "of the bytes, as a recipe pins them"),
    ):
        if digest:
            put(f"{name:<12}  {digest}, {of}")
    for name, value in seen["metadata"].items():
        put(f"{name:<28} {value}")
    typer.echo()
    put(
        *(
            f"{name:<48} {tensor['dtype']:<9} {'×'.join(map(str, tensor['shape'])) or 'scalar'}"
            for name, tensor in seen["tensors"].items()
        )
    )
