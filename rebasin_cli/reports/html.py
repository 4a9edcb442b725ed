"""One self-contained page, light and dark, with everything the report holds (HTML)."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Mapping
from typing import Any

from . import Report, Row, png
from ._conclusion import conclude
from ._diagrams import colors, learning_svg, reliability, reliability_svg, signature_svg
from ._format import (
    ACCURACY_COLUMNS,
    CERTAIN,
    COLUMNS,
    DEFINITIONS,
    LEGEND,
    MISSING,
    OVER_PAIRS,
    SHIPPED,
    SIGNATURE,
    best,
    certain,
    clean,
    code_pieces,
    endpoint_figures,
    endpoints,
    facts,
    figures,
    fixed,
    headline,
    learning,
    number,
    over_pairs,
    pairs_heading,
    samples,
    signature,
    splits,
    tags,
    title,
    took,
    within,
)
from ._gates import verdict
from ._page import STYLE
from ._plot import describe, legend, logarithmic, styles, svg

FILENAME = "report.html"
HELP = "Write the report as one HTML file."


def render(report: Report) -> str:
    """HTML without scripts or links to elsewhere; text from outside (file names, notes) is escaped."""
    body = [
        _header(report),
        _section("Along the path", _picture(report)),
        *(_section(_heading(report, split), _rows(report, split)) for split in splits(report)),
        f'<p class="legend">{_text(LEGEND)} <b aria-hidden="true">▸</b> {_sentence(SHIPPED)}.</p>',
        *_more(report),
        _section("Gates", _gates(report)) if report.gates else "",
        _section("Notes", _list(_sentence(note) for note in report.notes)) if report.notes else "",
        _section("How it was measured", _facts(report)),
        _section("Inputs", _inputs(report)),
        _section("Measure it again", _again(report)),
        _details("What the words mean", _pairs((word, _text(text)) for word, text in DEFINITIONS)),
        *(_details(f"Every point: {_text(row.name)}", _points(row)) for row in report.rows),
        f'<p class="legend">took {_text(took(report.times))}</p>' if report.times else "",
    ]
    style = "\n".join([STYLE.strip(), _colors(report), colors(reliability(report))])
    return _PAGE.format(title=_text(title(report)), style=style, body="\n".join(filter(None, body)))


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _text(value: Any) -> str:
    return html.escape(clean(value), quote=True)


def _sentence(value: Any) -> str:
    """A note or a line of ours, in which `words` in backquotes are code."""
    return "".join(f"<code>{_text(p)}</code>" if code else _text(p) for p, code in code_pieces(clean(value)))


def _section(heading: str, content: str) -> str:
    return f"<section>\n<h2>{heading}</h2>\n{content}\n</section>"


def _details(summary: str, content: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n{content}\n</details>"


def _list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{item}</li>" for item in items) + "\n</ul>"


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl>\n" + "\n".join(f"<dt>{_text(word)}</dt><dd>{text}</dd>" for word, text in pairs) + "\n</dl>"


def _header(report: Report) -> str:
    badge = ""
    if report.gates:
        css, mark = ("met", "✓") if all(gate.met for gate in report.gates) else ("missed", "✗")
        badge = f'<p class="badge {css}">{mark} {_text(verdict(report.gates))}</p>'
    said = [_text(headline(report)), f"<b>{_text(conclude(report))}</b>" if conclude(report) else ""]
    lines = "\n".join(f"<p>{line}</p>" for line in said if line)
    return f"<header>\n<h1>{_text(title(report))}</h1>\n{lines}\n{badge}\n</header>"


def _heading(report: Report, split: str) -> str:
    return f"On {_text(split)} data <small>{_text(samples(report, split))}</small>"


def _picture(report: Report) -> str:
    labels = {"loss": "Loss, nats per sample", "accuracy": "Accuracy, 0–1"}
    if logarithmic(report):
        labels["loss"] += " (logarithmic)"
    panels = "\n".join(
        f"<figure>\n<figcaption>{label}</figcaption>\n{svg(report, quantity, label)}\n</figure>"
        for quantity, label in labels.items()
    )
    keys = [
        f"<li>{key} {_text(name)} <small>{_text(words)}</small></li>" for name, words, key in legend(report)
    ]
    lines = zip(splits(report)[:2], ("solid", "dashed"), strict=False)
    keys += [f"<li><small>{_text(split)}: {line}</small></li>" for split, line in lines]
    keys.append("<li><small>chord: dotted</small></li>")
    picture = base64.b64encode(png.render(report)).decode("ascii")
    return (
        f'<div class="panels">\n{panels}\n</div>\n<ul class="keys">\n' + "\n".join(keys) + "\n</ul>\n"
        f"<details>\n<summary>The same as one picture (PNG)</summary>\n"
        f'<img alt="{_text(describe(report))}" src="data:image/png;base64,{picture}">\n</details>'
    )


def _table(caption: str, head: Iterable[tuple[str, str]], rows: Iterable[str]) -> str:
    """`head` holds (text, class) of each column."""
    cells = "".join(f'<th scope="col" class="{css}">{text}</th>' for text, css in head)
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table>\n<caption>{caption}</caption>\n'
        f"<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _tr(head: str, cells: Iterable[str], css: str = "row") -> str:
    row = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    return f'<tr class="{css}"><th scope="row">{head}</th>{row}</tr>'


def _rows(report: Report, split: str) -> str:
    rows = []
    for letter, file, ends in endpoints(report):
        cells = [*map(_text, endpoint_figures(ends, split)), "", "", "", ""]
        rows.append(_tr(f"{letter} <small>{_text(file)}</small>", cells))
    for row in report.rows:
        name = f"{'▸ ' if row.shipped else ''}{_text(row.name)} <small>{_text(', '.join(tags(row)))}</small>"
        rows.append(_tr(name, map(_text, figures(row, split)), "shipped" if row.shipped else "row"))
    caption = f"Figures on {_text(split)}: loss and barriers in nats per sample, accuracy 0–1"
    return _table(caption, [("", ""), *((column, "n") for column in (*COLUMNS, *ACCURACY_COLUMNS))], rows)


def _more(report: Report) -> list[str]:
    """Means over pairs, intervals and calibration, the signature: sections, as far as there is anything."""
    split, found = next(iter(splits(report)), ""), []
    if over := over_pairs(report, split):
        rows = [_tr(_text(name), map(_text, cells)) for name, cells in over]
        caption = f"Figures on {_text(split)} {_text(pairs_heading(report))}"
        table = _table(caption, [("", ""), *((column, "n") for column in OVER_PAIRS)], rows)
        files = _list(
            " and ".join(_text(model.get("file", "?")) for model in p["inputs"]) for p in report.pairs
        )
        small = f'<p class="legend">{_text(pairs_heading(report))}</p>'
        found.append(_section(f"Over pairs, on {_text(split)} data", f"{table}\n{small}\n{files}"))
    sure = [
        _table(
            f"95 % intervals at λ=½ on {_text(each)}, and calibration",
            [("", ""), *((column, "n") for column in CERTAIN)],
            [
                _tr(_text(name), map(_text, cells), "shipped" if row and row.shipped else "row")
                for name, row, cells in rows
            ],
        )
        for each in splits(report)[:1]
        if (rows := certain(report, each))
    ]
    if sure:
        found.append(
            _section(f"How sure: 95 % at λ=½, on {_text(split)} data", "\n".join(sure + _compared(report)))
        )
    if diagrams := reliability(report):
        figures_ = "\n".join(
            f"<figure>\n<figcaption>{_text(diagram.name)} "
            f"<small>ECE {fixed(diagram.ece)}</small></figcaption>\n"
            f"{reliability_svg(diagram, place)}\n</figure>"
            for place, diagram in enumerate(diagrams)
        )
        legend_ = "Accuracy over confidence; dotted: as sure as right; pale: fewer than 0.5 % of the samples."
        small = f'<p class="legend">{_text(legend_)}</p>'
        heading = f"How sure of itself, on {_text(split)} data"
        found.append(_section(heading, f'<div class="panels small">\n{figures_}\n</div>\n{small}'))
    if words := signature(report):
        rows = [_tr(_text(word), map(_text, cells)) for word, cells in words]
        caption = "Matched correlation of units, mean ± standard deviation"
        table = _table(caption, [("", ""), *((column, "n") for column in SIGNATURE)], rows)
        drawing = f'<div class="panels"><figure>\n{signature_svg(report)}\n</figure></div>'
        found.append(_section("Matched correlation, before and after alignment", f"{drawing}\n{table}"))
    if rows := learning(report):
        kept = best(rows)
        told = (
            "Loss at the midpoint on held-out training samples, in nats, over steps; kept: "
            f"step {kept['step']:.0f}, {fixed(kept['held_out_loss'])}"
        )
        right = kept.get("held_out_accuracy")
        told += "." if right is None else f", accuracy {fixed(right)}."
        drawing = f'<div class="panels"><figure>\n{learning_svg(report)}\n</figure></div>'
        small = f'<p class="legend">{_text(told)}</p>'
        found.append(_section("The permutations, as they were learnt", f"{drawing}\n{small}"))
    return found


def _compared(report: Report) -> list[str]:
    """The differences between rows, folded away."""
    if not report.differences:
        return []
    rows = [
        _tr(
            f"{_text(one.row)} − {_text(one.other)}",
            map(
                _text,
                (
                    fixed(one.loss),
                    within(one.loss_interval),
                    fixed(one.accuracy),
                    within(one.accuracy_interval),
                ),
            ),
        )
        for one in report.differences
    ]
    head = [("", ""), ("loss", "n"), ("95 %", "n"), ("accuracy", "n"), ("95 %", "n")]
    return [_details("Differences on the same samples", _table("Differences at λ=½", head, rows))]


def _gates(report: Report) -> str:
    rows = []
    for gate in report.gates:
        mark = "✓ met" if gate.met else "✗ not met"
        css = "met" if gate.met else "missed"
        rows.append(
            f'<tr class="{css}"><th scope="row"><code>{_text(gate.text)}</code></th>'
            f'<td class="mark">{mark}</td><td class="n">{number(gate.measured)}</td>'
            f'<td class="n">{number(gate.limit)}</td><td>{_text(gate.detail)}</td></tr>'
        )
    head = [("gate", ""), ("result", ""), ("measured", "n"), ("limit", "n"), ("in words", "")]
    return _table(_text(verdict(report.gates)), head, rows)


def _facts(report: Report) -> str:
    """The sentences of `facts`; below, what else the parts of the program had to say."""
    short = _pairs((word, _text(text)) for word, text in facts(report))
    match = {key: value for key, value in report.match.items() if key != "history"}  # it is drawn
    parts = {"match": match, "proof": report.proof, "data": report.data, "spec": report.spec}
    full = _pairs((word, _lines(values) or MISSING) for word, values in parts.items())
    return short + "\n" + _details("In full", full)


def _lines(values: Mapping[str, Any]) -> str:
    shown = ((key, value) for key, value in values.items() if value is not None)
    return "<br>".join(f"{_text(key)}: {_value(value)}" for key, value in shown)


def _value(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return f"<code>{_text(json.dumps(value, ensure_ascii=False, default=str))}</code>"
    return f"<code>{_text(value)}</code>"


def _inputs(report: Report) -> str:
    parts = []
    for place, model in enumerate(report.inputs):
        known = {"sha256": model.get("sha256"), **(model.get("recorded") or {})}
        known |= {key: value for key, value in model.items() if key not in ("file", "sha256", "recorded")}
        parts.append((chr(ord("A") + place), f"<b>{_text(model.get('file', '?'))}</b><br>{_lines(known)}"))
    return _pairs(parts)


def _again(report: Report) -> str:
    return (
        f"<pre><code>{_text(report.command)}</code></pre>\n<p>rebasin {_text(report.rebasin)}, "
        f"seed {_text(report.seed)}; schema {_text(report.schema)}</p>"
    )


def _points(row: Row) -> str:
    shown = sorted(row.curves, key=lambda split: (split != "test", split != "train", split))
    head = [("λ", "")]
    head += [(f"{_text(split)} {quantity}", "n") for split in shown for quantity in ("loss", "accuracy")]
    rows = []
    for place in sorted({point for curve in row.curves.values() for point in curve.lambdas}):
        found = [row.curves[split].at(place) or (None, None) for split in shown]
        rows.append(_tr(number(place), (fixed(value) for pair in found for value in pair)))
    return _table(f"Loss in nats and accuracy along {_text(row.name)}", head, rows)


def _colors(report: Report) -> str:
    """The rows' colours as style rules: one set for light pages, one for dark."""
    colors = [style.color for style in styles(report).values()]
    light, dark = (
        "".join(f".row{place} {{ --row: {color[scheme]}; }}\n" for place, color in enumerate(colors))
        for scheme in (0, 1)
    )
    return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}"
