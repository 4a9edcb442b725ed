"""A comparison as one self-contained page, light and dark (HTML)."""

from __future__ import annotations

import math

from ..reports import _lines
from ..reports._elements import (
    breakable,
    command,
    header,
    hidden,
    items,
    page,
    pairs,
    section,
    table,
    text,
    tr,
)
from ..reports._facts import facts, took
from .compared import Comparison
from .formats import ceiling
from .tables import Table, headline, tables, title


def render(found: Comparison) -> str:
    """HTML without scripts or links to elsewhere; text from outside (file names, notes) is escaped."""
    lines = {what: _series(found, what) for what in ("loss", "accuracy")}
    body = [
        header(title(found), text(headline(found))),
        section("The mean of n models", _panels(found, lines)),
        *(section(text(one.title), _table(one)) for one in tables(found)),
        section("Notes", items(text(note) for note in found.notes)) if found.notes else "",
        section("How it was measured", pairs((word, text(said)) for word, said in facts(found))),
        section("Inputs", _inputs(found)),
        section("Measure it again", command(found.command)),
        f'<p class="legend">took {text(took(found.times))}</p>',
    ]
    return page(title(found), body, _lines.colors(lines["loss"]))


def _inputs(found: Comparison) -> str:
    told = (
        f"<b>{breakable(model.get('file', '?'))}</b><br>sha256: <code>{text(model.get('sha256', ''))}</code>"
        for model in found.inputs
    )
    return pairs((str(k), said) for k, said in enumerate(told, start=1))


def _series(found: Comparison, what: str) -> list[_lines.Line]:
    """A line for every method, and the models' own mean."""
    first = found.methods[0].merged
    ends = tuple((merged.models, getattr(merged.mean["test"], f"ends_{what}")) for merged in first)
    return [
        *(
            _lines.Line(
                name,
                tuple(
                    (merged.models, getattr(mean["test"], what))
                    for merged, mean in zip(first, means, strict=True)
                ),
            )
            for name, means in found.means()
        ),
        _lines.Line("mean of the models", ends, faint=True),
    ]


def _panels(found: Comparison, lines: dict[str, list[_lines.Line]]) -> str:
    tops = {"loss": ceiling(found), "accuracy": math.inf}
    words = {"loss": "Test loss, nats per sample", "accuracy": "Test accuracy, 0–1"}
    figures = ""
    for what, label in words.items():
        drawing = _lines.svg(lines[what], f"{label}, over models merged", what, "models merged", tops[what])
        figures += f"<figure>\n<figcaption>{label}</figcaption>\n{drawing}\n</figure>\n"
    return f'<div class="panels">\n{figures}</div>\n{_lines.keys(lines["loss"])}'


def _table(made: Table) -> str:
    head = [(hidden(made.columns[0]), ""), *((text(column), "n") for column in made.columns[1:])]
    rows = [
        tr(text(row[0].strip()), map(text, row[1:]), "faint" if k in made.faint else "row")
        for k, row in enumerate(made.rows)
    ]
    note = f'\n<p class="legend">{text(made.note)}</p>' if made.note else ""
    return table(text(made.title), head, rows) + note
