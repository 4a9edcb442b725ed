"""What `inspect` and `list` show a person."""

from __future__ import annotations

from typing import Any

import typer

from ..runtime.text import many
from ._show import put


def inspected(done: Any) -> None:
    """What a file holds: about it, its metadata, its tensors."""
    seen = done.values()
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


def listed(done: Any) -> None:
    """What there is to name, with the options of methods where they were asked for."""
    from ..commands.list import option_lines

    for name, things in done.kinds.items():
        put(f"{name}:")
        for thing in things:
            put(f"  {thing['name']:<24} {thing['summary']}")
            if done.verbose and "broken" in thing:
                put(f"      {thing['broken']}")
            for line in option_lines(thing.get("options", ())) if done.verbose else ():
                put(f"      {line}")
