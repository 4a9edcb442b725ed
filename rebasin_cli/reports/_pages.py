"""What `signature` and `doctor` found, as self-contained pages: from the values that they print as JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from ..runtime.text import many
from . import _plane
from ._diagrams import signature_svg
from ._elements import command, details, header, hidden, items, page, pairs, section, table, text, tr
from ._facts import took
from ._format import MISSING, fixed, number

MATCHED = "Correlation of matched units"


def signature(found: Mapping[str, Any], files: Sequence[Any], line: str) -> str:
    """Mean ± standard deviation a word, before and after alignment, and how stable the match is."""
    method, stable = found["match"]["method"], found["stability"]
    shares = stable["samples"][:-1] if stable else []
    curved = "curve" in found
    names = ("units", "dead", "before", "± std", "after", "± std", *["line ½", "end"] * curved)
    head = [(hidden("word"), ""), *((name, "n") for name in names)]
    head += [(f"as on {number(count)}", "n") for count in shares]
    rows = [
        tr(
            text(row["word"]),
            [
                number(row["units"]),
                number(row["dead"]),
                *(_short(row[when][what]) for when in ("before", "after") for what in ("mean", "std")),
                *(_short(row[what]["mean"]) for what in ("line", "ends") if curved),
                *(_share(share) for share in (stable["words"][row["word"]][:-1] if stable else ())),
            ],
        )
        for row in found["signature"]
    ]
    if stable:
        rows.append(tr("all", [*[""] * 6, *map(_share, stable["overall"][:-1])], "shipped"))
    drawing = f'<div class="panels"><figure>\n{signature_svg(found["signature"])}\n</figure></div>'
    method = "A and the curve at t = ½, as it is and once its units are matched" if curved else method
    told = f"{method}, {many(found['samples'], 'sample')} of {found['data']}"
    body = [
        header(f"Signature of {' and '.join(map(str, files))}", text(told)),
        section("Before and after alignment", f"{drawing}\n{table(MATCHED, head, rows)}"),
        section("Measure it again", command(line)),
        f'<p class="legend">took {text(took(found["times"]))}</p>' if found["times"] else "",
    ]
    return page(f"Signature of {' and '.join(map(str, files))}", body)


def plane(found: Mapping[str, Any]) -> str:
    """Loss and accuracy over a plane: the picture, and the figures of the models and of the grid."""
    files = " and ".join(str(model["file"]) for model in found["inputs"])
    picture = base64.b64encode(_plane.render(found)).decode("ascii")
    split = text(found["data"]["split"])
    head = [
        (hidden("model"), ""),
        *((name, "n") for name in ("x", "y", f"{split} loss", f"{split} accuracy")),
    ]
    rows = [
        tr(
            text(one["name"]),
            [*(_short(one[axis]) for axis in "xy"), fixed(one["loss"]), fixed(one["accuracy"])],
        )
        for one in [*found["points"], *_extremes(found)]
    ]
    away = [
        f"{text(curve['name'])}: its points are {curve['away']:.3g} from the plane at most"
        for curve in found["curves"]
    ]
    alt = "Filled contours of loss and accuracy over the plane, with the models and the paths between them"
    name = f"The plane through {files}"
    body = [
        header(name, text(_plane.said(found))),
        f'<img alt="{alt}" src="data:image/png;base64,{picture}">',
        section("Models, and the extremes of the grid", table("Models and extremes", head, rows)),
        section("Curves", items(away)) if away else "",
        section("Measure it again", command(found["command"])),
        f'<p class="legend">took {text(took(found["times"]))}</p>' if found["times"] else "",
    ]
    return page(name, body)


def _extremes(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points of the grid with the lowest and with the highest loss."""
    every = [
        {"x": x, "y": y, "loss": found["loss"][row][column], "accuracy": found["accuracy"][row][column]}
        for row, y in enumerate(found["y"])
        for column, x in enumerate(found["x"])
    ]
    low, high = (pick(every, key=lambda one: one["loss"]) for pick in (min, max))
    return [{"name": "lowest"} | low, {"name": "highest"} | high]


def doctor(found: Mapping[str, Any], line: str) -> str:
    """The verdict and the command to run next, then the facts that lead to it."""
    name = f"Doctor: {' and '.join(found['files'])}"
    css = "missed" if found["verdict"] == "nothing-in-common" else "met"
    badge = f'<p class="badge {css}">{text(found["verdict"])}</p>'
    said = [
        f"{'<b>! ' if fact['warns'] else ''}{text(fact['says'])}{'</b>' if fact['warns'] else ''}"
        for fact in found["facts"].values()
    ]
    body = [
        header(name, f"<b>{text(found['advice'])}</b>", badge=badge),
        section("Run next", command(found["next"])),
        section("What was found", items(said)),
        section("Layer by layer", _words(found["words"])) if found["words"] else "",
        details("Tensor by tensor", _tensors(found["tensors"])) if found["tensors"] else "",
        section("What was not looked at", items(map(text, found["unseen"]))) if found["unseen"] else "",
        section("Look again", _spec(found["spec"]) + command(line)),
    ]
    return page(name, body)


def _spec(spec: Mapping[str, Any] | None) -> str:
    return "" if spec is None else pairs([("spec", text(spec["name"]))])


def _words(words: Sequence[Mapping[str, Any]]) -> str:
    head = [(hidden("word"), ""), ("units", "n")]
    seen = any("midpoint" in row for row in words)
    if seen:
        names = ("dead A", "dead B", "correlation", "matched", "½ naive", "½ aligned")
        head += [(name, "n") for name in names]
    rows = []
    for row in words:
        cells = [number(row["units"])]
        if seen:
            alike, middle = (row["before"]["mean"], row["after"]["mean"]), row["midpoint"]
            cells += [number(row["dead_a"]), number(row["dead_b"])]
            cells += map(_short, (*alike, middle["naive"], middle["aligned"]))
        rows.append(tr(text(row["word"]), cells))
    note = (
        "correlation, matched: of units, as they are and matched; ½: standard deviation of the midpoint's "
        "activations over the endpoints'"
    )
    drawing = f'<div class="panels"><figure>\n{signature_svg(words)}\n</figure></div>\n' if seen else ""
    legend = f'\n<p class="legend">{text(note)}</p>' if seen else ""
    return f"{drawing}{table('Permuted layers', head, rows)}{legend}"


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> str:
    keys = [key for key in tensors[0] if key != "tensor"]
    head = [(hidden("tensor"), ""), *((text(key.replace("_", " ")), "n") for key in keys)]
    rows = [
        tr(f"<code>{text(row.get('tensor', ''))}</code>", (text(_any(row[key])) for key in keys))
        for row in tensors
    ]
    return table("Tensors", head, rows)


def _any(value: Any) -> str:
    if isinstance(value, float):
        return fixed(value)
    return number(value) if isinstance(value, int) else str(value)


def _short(value: float) -> str:
    return MISSING if value != value else f"{value:z.3f}"


def _share(value: float) -> str:
    return MISSING if value != value else f"{value:.1%}"
