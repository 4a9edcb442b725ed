"""What `rebasin doctor` found, as a document: facts, layers, what was not seen, what to run next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import format as f
from .document import (
    Badge,
    Code,
    Column,
    Command,
    Document,
    Facts,
    Fold,
    Inline,
    Kind,
    Notes,
    On,
    Row,
    Table,
    Tone,
)
from .signature import drawn

STRANGE = "nothing-in-common"
LAYERS = ("units", "dead A", "dead B", "corr.", "matched", "½ naive", "½ aligned")
NOTE = (
    "corr., matched: correlation of units, as they are and matched. ½: standard deviation of the "
    "midpoint's activations over the endpoints'."
)


def document(found: Mapping[str, Any], line: str = "") -> Document:
    """From the values that are printed as JSON; `line` is the command that found them."""
    facts = list(found["facts"].values())
    strong = frozenset(place for place, fact in enumerate(facts) if fact["warns"])
    words = found["words"]
    seen = any("midpoint" in row for row in words)
    spec: list[tuple[str, Inline]] = [("spec", found["spec"]["name"])] if found["spec"] else []
    verdict: list[tuple[str, Inline]] = [("verdict", found["verdict"]), ("", found["advice"])]
    return Document(
        f"Doctor: {' and '.join(found['files'])}",
        [],
        [
            Command("Run next", found["next"], found["advice"]),
            Notes("What was found", [fact["says"] for fact in facts], strong=strong),
            *([drawn(words, on=On.PAGE)] if seen else []),
            _layers(words, seen),
            Fold("Tensor by tensor", [_tensors(found["tensors"])]),
            Notes(
                "What was not looked at",
                [f"not looked at: {text}" if ": " in text else text for text in found["unseen"]],
            ),
            Facts("", verdict, on=On.TERMINAL),
            Command("next   ", found["next"], on=On.TERMINAL),
            Facts("Look again", spec, on=On.WRITTEN),
            Command("", line),
        ],
        Badge(found["verdict"], Tone.MISSED if found["verdict"] == STRANGE else Tone.MET),
    )


def _layers(words: Sequence[Mapping[str, Any]], seen: bool) -> Table:
    rows = []
    for row in words:
        cells = [row["word"], f.number(row["units"])]
        if seen:
            figures = (
                row["before"]["mean"],
                row["after"]["mean"],
                *(row["midpoint"][how] for how in ("naive", "aligned")),
            )
            cells += [f.number(row["dead_a"]), f.number(row["dead_b"]), *map(f.short, figures)]
        rows.append(Row(cells))
    names = LAYERS if seen else LAYERS[:1]
    columns = [Column("word", Kind.TEXT), *map(Column, names)]
    on = On.ALL if seen else On.WRITTEN
    return Table("Layer by layer", columns, rows, NOTE * seen, on=on)


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> Table:
    keys = [key for key in (tensors[0] if tensors else ()) if key != "tensor"]
    rows = [Row([Code(row.get("tensor", "")), *(_any(row[key]) for key in keys)]) for row in tensors]
    return Table("", [Column("tensor", Kind.TEXT), *(Column(key.replace("_", " ")) for key in keys)], rows)


def _any(value: Any) -> str:
    if isinstance(value, float):
        return f.fixed(value)
    return f.number(value) if isinstance(value, int) else str(value)
