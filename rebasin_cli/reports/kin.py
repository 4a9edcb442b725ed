"""What `rebasin kin` found, as a document: the verdict, both tests, the effect, what was compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..runtime.text import many
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

ANCESTOR = "What is found is a common ancestor, a common initialisation among them, and not who copied whom."


def document(found: Mapping[str, Any], line: str = "") -> Document:
    """From the values that are printed as JSON; `line` is the command that found them."""
    place, again, effect = found["in_place"], found["relabelled"], found["effect"]
    rows: list[tuple[str, Inline]] = [("verdict", found["verdict"]), ("", found["why"])]
    if place is not None:
        compared = f"{many(len(place['tensors']), 'tensor')} compared"
        rows.append(("in place", _test(place, compared)))
    if again is not None:
        rows.append(
            ("relabelled", _test(again, f"{many(again['columns'], 'column')} that the data never move"))
        )
    rows.append(("effect", _effect(effect)))
    left = found["left_out"]
    if left:
        rows.append(("left out", f"{many(len(left), 'tensor')}{_most(left)}"))
    look: list[tuple[str, Inline]] = [("spec", found["spec"]["name"]), ("seed", str(found["seed"]))]
    derived = found["verdict"].startswith("derived")
    return Document(
        f"Kin: {' and '.join(found['files'])}",
        [],
        [
            Facts("", rows),
            Notes("", [*found["notes"], *([ANCESTOR] if derived else [])]),
            Fold("Tensor by tensor", [_tensors(place), _left(left)]),
            Facts("Look again", look, on=On.WRITTEN),
            Command("", line),
        ],
        Badge(found["verdict"], Tone.MET if derived else Tone.SKIPPED),
    )


def _test(test: Mapping[str, Any], what: str) -> str:
    if test.get("why"):
        return f"no exact test: {test['why']}"
    if math.isnan(float(test["p"])):
        return "no test: no unit's place tells anything"
    return f"p = {float(test['p']):.2g} of {f.number(test['draws'])} draws, z {float(test['z']):.1f}; {what}"


def _effect(effect: Mapping[str, Any]) -> str:
    rho = float(effect["rho"])
    if math.isnan(rho):
        return "ρ is not measured"
    rank = float(effect["rank"])
    beside = effect["references"]
    told = (
        "" if math.isnan(rank) else f"; {', '.join(f.short(each) for each in beside.values())} of references"
    )
    return f"ρ = {rho:.2f}, {effect['as']}{told}"


def _most(left: Mapping[str, str]) -> str:
    counts: dict[str, int] = {}
    for why in left.values():
        counts[why] = counts.get(why, 0) + 1
    why, count = max(counts.items(), key=lambda item: item[1])
    most = "all" if count == len(left) else f"{count} of them"
    return f"; {most}: {why}" if len(left) > 1 else f": {why}"


def _tensors(place: Mapping[str, Any] | None) -> Table:
    rows = [
        Row([Code(name), f.fixed(cosine)]) for name, cosine in (place or {"tensors": {}})["tensors"].items()
    ]
    return Table("Compared", [Column("tensor", Kind.TEXT), Column("cosine")], rows)


def _left(left: Mapping[str, str]) -> Table:
    rows = [Row([Code(name), why]) for name, why in left.items()]
    return Table("Left out", [Column("tensor", Kind.TEXT), Column("why", Kind.TEXT)], rows)
