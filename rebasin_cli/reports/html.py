"""One self-contained page, light and dark, with everything the report holds (HTML)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from . import Report, Row, png
from ._conclusion import conclude
from ._diagrams import colors, learning_svg, reliability, reliability_svg, signature_svg
from ._elements import (
    breakable,
    command,
    details,
    header,
    hidden,
    items,
    page,
    pairs,
    section,
    sentence,
    table,
    text,
    tr,
)
from ._facts import facts, took
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
    endpoint_figures,
    endpoints,
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
    within,
)
from ._gates import mark, results, verdict
from ._plot import describe, legend, logarithmic, styles, svg

FILENAME = "report.html"
HELP = "Write the report as one HTML file."


def render(report: Report) -> str:
    """HTML without scripts or links to elsewhere; text from outside (file names, notes) is escaped."""
    body = [
        _header(report),
        section("Along the path", _picture(report)),
        *(section(_heading(report, split), _rows(report, split)) for split in splits(report)),
        f'<p class="legend">{text(LEGEND)} <b aria-hidden="true">▸</b> {sentence(SHIPPED)}.</p>',
        *_more(report),
        section("Gates", _gates(report)) if results(report) else "",
        section("Notes", items(sentence(note) for note in report.notes)) if report.notes else "",
        section("How it was measured", _facts(report)),
        section("Inputs", _inputs(report)),
        section("Measure it again", _again(report)),
        details("What the words mean", pairs((word, text(said)) for word, said in DEFINITIONS)),
        *(details(f"Every point: {text(row.name)}", _points(row)) for row in report.rows),
        f'<p class="legend">took {text(took(report.times))}</p>' if report.times else "",
    ]
    return page(title(report), body, _colors(report), colors(reliability(report)))


def _header(report: Report) -> str:
    badge = ""
    if found := results(report):
        css = "met" if all(gate.met for gate in found) else "missed"
        sign = {"met": "✓ " * bool(report.gates), "missed": "✗ "}[css]
        badge = f'<p class="badge {css}">{sign}{text(verdict(found))}</p>'
    said = f"<b>{text(conclude(report))}</b>" if conclude(report) else ""
    return header(title(report), text(headline(report)), said, badge=badge)


def _heading(report: Report, split: str) -> str:
    return f"On {text(split)} data <small>{text(samples(report, split))}</small>"


def _unbroken(words: str) -> str:
    """`T = 0.36` stays on one line."""
    return text(words).replace(" = ", "\u00a0=\u00a0")


def _picture(report: Report) -> str:
    labels = {"loss": "Loss, nats per sample", "accuracy": "Accuracy, 0–1"}
    if logarithmic(report):
        labels["loss"] += " (logarithmic)"
    panels = "\n".join(
        f"<figure>\n<figcaption>{label}</figcaption>\n{svg(report, quantity, label)}\n</figure>"
        for quantity, label in labels.items()
    )
    keys = [
        f"<li>{key} <span>{text(name)} <small>{_unbroken(words)}</small></span></li>"
        for name, words, key in legend(report)
    ]
    lines = zip(splits(report)[:2], ("solid", "dashed"), strict=False)
    keys += [f"<li><small>{text(split)}: {line}</small></li>" for split, line in lines]
    keys.append("<li><small>chord: dotted</small></li>")
    picture = base64.b64encode(png.render(report)).decode("ascii")
    return (
        f'<div class="panels">\n{panels}\n</div>\n<ul class="keys">\n' + "\n".join(keys) + "\n</ul>\n"
        f"<details>\n<summary>The same as one picture (PNG)</summary>\n"
        f'<img alt="{text(describe(report))}" src="data:image/png;base64,{picture}">\n</details>'
    )


def _rows(report: Report, split: str) -> str:
    rows = []
    for letter, file, ends in endpoints(report):
        cells = [*map(text, endpoint_figures(ends, split)), "", "", "", ""]
        rows.append(tr(f"{letter} <small>{text(file)}</small>", cells))
    for row in report.rows:
        said = _unbroken(", ".join(tags(row)))
        name = f"{'▸ ' if row.shipped else ''}{text(row.name)} <small>{said}</small>"
        rows.append(tr(name, map(text, figures(row, split)), "shipped" if row.shipped else "row"))
    caption = f"Figures on {text(split)}: loss and barriers in nats per sample, accuracy 0–1"
    return table(
        caption, [(hidden("row"), ""), *((column, "n") for column in (*COLUMNS, *ACCURACY_COLUMNS))], rows
    )


def _more(report: Report) -> list[str]:
    """Means over pairs, intervals and calibration, the signature: sections, as far as there is anything."""
    split, found = next(iter(splits(report)), ""), []
    if over := over_pairs(report, split):
        rows = [tr(text(name), map(text, cells)) for name, cells in over]
        caption = f"Figures on {text(split)} {text(pairs_heading(report))}"
        grid = table(caption, [(hidden("row"), ""), *((column, "n") for column in OVER_PAIRS)], rows)
        files = items(
            " and ".join(text(model.get("file", "?")) for model in p["inputs"]) for p in report.pairs
        )
        small = f'<p class="legend">{text(pairs_heading(report))}</p>'
        found.append(section(f"Over pairs, on {text(split)} data", f"{grid}\n{small}\n{files}"))
    sure = [
        table(
            f"95 % intervals at λ=½ on {text(each)}, and calibration",
            [(hidden("row"), ""), *((column, "n") for column in CERTAIN)],
            [
                tr(text(name), map(text, cells), "shipped" if row and row.shipped else "row")
                for name, row, cells in rows
            ],
        )
        for each in splits(report)[:1]
        if (rows := certain(report, each))
    ]
    if sure:
        found.append(
            section(f"How sure: 95 % at λ=½, on {text(split)} data", "\n".join(sure + _compared(report)))
        )
    if diagrams := reliability(report):
        figures_ = "\n".join(
            f"<figure>\n<figcaption>{text(diagram.name)} "
            f"<small>ECE {fixed(diagram.ece)}</small></figcaption>\n"
            f"{reliability_svg(diagram, place)}\n</figure>"
            for place, diagram in enumerate(diagrams)
        )
        legend_ = "Accuracy over confidence; dotted: as sure as right; pale: fewer than 0.5 % of the samples."
        small = f'<p class="legend">{text(legend_)}</p>'
        heading = f"How sure of itself, on {text(split)} data"
        found.append(section(heading, f'<div class="panels small">\n{figures_}\n</div>\n{small}'))
    if words := signature(report):
        rows = [tr(text(word), map(text, cells)) for word, cells in words]
        caption = "Matched correlation of units, mean ± standard deviation"
        grid = table(caption, [(hidden("row"), ""), *((column, "n") for column in SIGNATURE)], rows)
        drawing = f'<div class="panels"><figure>\n{signature_svg(report.signature)}\n</figure></div>'
        found.append(section("Matched correlation, before and after alignment", f"{drawing}\n{grid}"))
    if rows := learning(report):
        kept = best(rows)
        told = (
            "Loss at the midpoint on held-out training samples, in nats, over steps; kept, for the least "
            f"loss at the best temperature: step {kept['step']:.0f}, {fixed(kept['held_out_loss'])}"
        )
        right = kept.get("held_out_accuracy")
        told += "." if right is None else f", accuracy {fixed(right)}."
        drawing = f'<div class="panels"><figure>\n{learning_svg(report)}\n</figure></div>'
        small = f'<p class="legend">{text(told)}</p>'
        found.append(section("The permutations, as they were learnt", f"{drawing}\n{small}"))
    return found


def _compared(report: Report) -> list[str]:
    """The differences between rows, folded away."""
    if not report.differences:
        return []
    rows = [
        tr(
            f"{text(one.row)} − {text(one.other)}",
            map(
                text,
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
    head = [(hidden("row"), ""), ("loss", "n"), ("95 %", "n"), ("accuracy", "n"), ("95 %", "n")]
    return [details("Differences on the same samples", table("Differences at λ=½", head, rows))]


def _gates(report: Report) -> str:
    rows, found = [], results(report)
    for gate, limit in zip_longest(found, (gate.limit for gate in report.gates)):
        css = "met" if gate.met and not gate.skipped else "missed"
        figures = ("—", "—") if gate.skipped else (number(gate.measured), number(limit))
        rows.append(
            f'<tr class="{css}"><th scope="row"><code>{breakable(gate.name)}</code></th>'
            f'<td class="mark">{mark(gate)}</td><td class="n">{figures[0]}</td>'
            f'<td class="n">{figures[1]}</td><td>{text(gate.message)}</td></tr>'
        )
    head = [("gate", ""), ("result", ""), ("measured", "n"), ("limit", "n"), ("in words", "")]
    return table(text(verdict(found)), head, rows)


def _facts(report: Report) -> str:
    """The sentences of `facts`; below, what else the parts of the program had to say."""
    short = pairs((word, text(said)) for word, said in facts(report))
    match = {key: value for key, value in report.match.items() if key != "history"}  # it is drawn
    parts = {"match": match, "proof": report.proof, "data": report.data, "spec": report.spec}
    full = pairs((word, _lines(values) or MISSING) for word, values in parts.items())
    return short + "\n" + details("In full", full)


def _lines(values: Mapping[str, Any]) -> str:
    shown = ((key, value) for key, value in values.items() if value is not None)
    return "<br>".join(f"{text(key)}: {_value(value)}" for key, value in shown)


def _value(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return f"<code>{text(json.dumps(value, ensure_ascii=False, default=str))}</code>"
    return f"<code>{text(value)}</code>"


def _inputs(report: Report) -> str:
    """File and digest; what the file records of itself is folded away."""
    parts = []
    for place, model in enumerate(report.inputs):
        known = {key: value for key, value in model.items() if key not in ("file", "recorded")}
        told = f"<b>{breakable(model.get('file', '?'))}</b><br>{_lines(known)}"
        if recorded := model.get("recorded"):
            told += details("Recorded in the file", _lines(recorded))
        parts.append((chr(ord("A") + place), told))
    return pairs(parts)


def _again(report: Report) -> str:
    return (
        f"{command(report.command)}\n<p>rebasin {text(report.rebasin)}, "
        f"seed {text(report.seed)}; schema {text(report.schema)}</p>"
    )


def _points(row: Row) -> str:
    shown = sorted(row.curves, key=lambda split: (split != "test", split != "train", split))
    head = [("λ", "")]
    head += [(f"{text(split)} {quantity}", "n") for split in shown for quantity in ("loss", "accuracy")]
    rows = []
    for place in sorted({point for curve in row.curves.values() for point in curve.lambdas}):
        found = [row.curves[split].at(place) or (None, None) for split in shown]
        rows.append(tr(number(place), (fixed(value) for pair in found for value in pair)))
    return table(f"Loss in nats and accuracy along {text(row.name)}", head, rows)


def _colors(report: Report) -> str:
    """The rows' colours as style rules: one set for light pages, one for dark."""
    colors = [style.color for style in styles(report).values()]
    light, dark = (
        "".join(f".row{place} {{ --row: {color[scheme]}; }}\n" for place, color in enumerate(colors))
        for scheme in (0, 1)
    )
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}"
