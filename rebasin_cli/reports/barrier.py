"""A barrier report as a document: the path, a table a split, how sure it is, gates, how it was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ..types import ACCURACY
from . import Middle, Report, Row
from . import format as f
from .conclusion import conclude
from .document import (
    Badge,
    Block,
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
    Small,
    Table,
    Tone,
    coded,
)
from .document import Row as TableRow
from .facts import facts, took
from .path import learning, path, reliability
from .signature import matched
from .verdicts import GateResult, mark, results, verdict

LEARNT = 10  # steps of a search that are told


def measured(report: Report) -> Document:
    """The figures alone, and what they come to."""
    return Document(f.title(report), [f.headline(report), conclude(report)], figures(report))


def document(report: Report, *, judged: bool = True) -> Document:
    """Everything that a report holds, the figures first; without its gates unless `judged`."""
    found = results(report) if judged else []
    bad = not all(gate.met for gate in found)
    badge = Badge(
        ("✗ " if bad else "✓ " * bool(report.gates)) + verdict(found), Tone.MISSED if bad else Tone.MET
    )
    return Document(
        f.title(report),
        [f.headline(report), conclude(report)],
        [
            path(report),
            *figures(report),
            gates(found, [gate.limit for gate in report.gates] if judged else []),
            Facts(
                "How it was measured",
                [
                    *facts(report, report.match, report.proof),
                    *([("took", took(report.times))] if report.times else []),
                ],
            ),
            Notes("Notes", [coded(note) for note in report.notes], word="note"),
            *_inputs(report.inputs),
            Command(
                "Measure it again",
                report.command,
                f"rebasin {report.rebasin}, seed {report.seed}; schema {report.schema}",
            ),
            Small(coded(f"{f.legend(report)} ▸ {f.SHIPPED}.")),
            Fold("How it was measured, in full", _in_full(report)),
            Fold("What the words mean", [Facts("", f.definitions(report))]),
            *(Fold(f"Every point: {row.name}", [_points(report, row)]) for row in report.rows),
        ],
        badge if found else None,
        f.title(report, 30),
    )


def figures(report: Report) -> list[Block]:
    """What was measured: a table a split, intervals, differences, means over pairs, signature, learning."""
    split = next(iter(f.splits(report)), "")
    pairs = [" and ".join(str(model.get("file", "?")) for model in pair["inputs"]) for pair in report.pairs]
    return [
        *(_split(report, each) for each in f.splits(report)),
        _certain(report, split),
        _classes(report, split),
        _flips(report, split),
        Fold("Classes with most negative flips", [_flipped(report, split)]),
        Fold("Differences on the same samples", [_differences(report)]),
        reliability(report, split),
        _over_pairs(report, split),
        Fold("The pairs", [Notes("", pairs)]),
        *matched(report.signature),
        learning(report),
        _learnt(report),
    ]


def _split(report: Report, split: str) -> Table:
    room = 2 + 2 * len(report.metrics)  # models are no path
    rows = [
        TableRow([letter, *f.endpoint_figures(report, ends, split), *[""] * room], remarks=[file])
        for letter, file, ends in f.endpoints(report)
    ]
    rows[-1:] = [TableRow(row.cells, remarks=row.remarks, last=True) for row in rows[-1:]]
    for row in report.rows:
        remarks = [tag for tag in f.tags(row) if tag != "shipped"]
        rows.append(TableRow([row.name, *f.figures(report, row, split)], _tone(row), remarks))
    heads = [*(f"{name} at λ=½" for name in report.keys.values()), "barrier midpoint", "barrier chord"]
    columns = [Column(split, Kind.TEXT), *map(Column, heads)]
    more = [f"{each.name} barrier {which}" for each in report.metrics for which in ("midpoint", "chord")]
    columns += [Column(name, on=On.PAGE) for name in more]
    return Table(f"On {split} data", columns, rows, remark=f.samples(report, split), headed=True)


def _tone(row: Row | None) -> Tone:
    return Tone.CHOSEN if row is not None and row.shipped else Tone.PLAIN


def _certain(report: Report, split: str) -> Table:
    """Intervals on one split; the barrier's is where there is room."""
    found: list[tuple[str, Row | None, Mapping[str, Any], float | None]] = []
    for letter, _, ends in f.endpoints(report):
        scores = ends.get(split) or {}
        found.append((letter, None, scores.get("intervals") or {}, scores.get("ece")))
    for row in report.rows:
        if (at := row.middle.get(split)) is not None:
            found.append((row.name, row, at.intervals, at.ece))
    rows = []
    for name, of, intervals, ece in found:
        ece = None if ece is None or ece != ece else ece  # NaN: outputs are no logits
        cells = [f.within(intervals.get(key)) for key in (*report.keys, "chord")]
        cells += [f.fixed(ece)] * report.classifies
        remarks = list(filter(None, [f.remark(of)])) if of else ()
        rows.append(TableRow([name, *cells], _tone(of), remarks))
    some = any(cell != f.MISSING for row in rows for cell in row.cells[1:]) and any(
        row for _, row, *_ in found
    )
    title, head = f"How sure: 95 % at λ=½, on {split} data", f"{split}, 95 % at λ=½"
    names = [*report.keys.values(), f.HEIGHT, *[f.CALIBRATION] * report.classifies]
    return _table(title, head, names, rows if some else [], f.HEIGHT)


def _table(
    title: str, head: str, names: Sequence[str], rows: Sequence[TableRow], roomy: str = "", **more: Any
) -> Table:
    columns = [Column(name, on=On.WRITTEN if name == roomy else On.ALL) for name in names]
    return Table(title, [Column(head, Kind.TEXT), *columns], rows, headed=True, **more)


def _shipped(report: Report, split: str) -> tuple[str, Middle]:
    """The name of what would be shipped, and its model at λ = ½; "" and nothing where there is none."""
    row = next((row for row in report.rows if row.shipped), None)
    return ("", Middle()) if row is None else (row.name, row.middle.get(split, Middle()))


def _classes(report: Report, split: str) -> Table:
    """The classes that the shipped row loses most of, where there are several."""
    _, middle = _shipped(report, split)
    rows = [
        TableRow(
            [
                str(one.number),
                f.fixed(one.accuracy),
                f.within(one.interval),
                f.fixed(one.ends),
                f"{one.drop:+.4f}",
                str(one.samples),
            ]
        )
        for one in middle.classes
    ]
    columns = ("accuracy", "95 %", "endpoints", "drop", "samples")
    title = f"Classes that lose most, on {split} data"
    return _table(title, f"{split}, class", columns, rows if len(rows) > 1 else [], remark="lost most")


def _flips(report: Report, split: str) -> Table:
    """The samples that both models have right, and rows have not."""
    columns = ("both right", "of these wrong", "share of all", "95 %", "only the row right")
    found = [(row, its) for row in report.rows if split in row.middle and (its := row.middle[split].flips)]
    rows = [
        TableRow(
            [
                row.name,
                f.number(its.both),
                f.number(its.lost),
                f.fixed(its.share),
                f.within(its.interval),
                f.number(its.gained),
            ],
            _tone(row),
        )
        for row, its in found
    ]
    remark = found[0][1].metric if found else ""
    title, head = f"Negative flips at λ=½, on {split} data", f"{split}, negative flips"
    return _table(title, head, columns, rows, remark=f"by {remark}", on=On.WRITTEN)


def _flipped(report: Report, split: str) -> Table:
    """The classes of the shipped row that lose the largest share of what both models have right."""
    name, middle = _shipped(report, split)
    rows = [
        TableRow([str(one.number), f.number(one.both), f.number(one.lost), f.within(one.interval)])
        for one in (middle.flips.classes if middle.flips else ())
    ]
    columns = ("both right", "of these wrong", "95 % of this share")
    return _table("", f"class, {name}", columns, rows)


def _differences(report: Report) -> Table:
    names = report.keys
    rows = [
        TableRow(
            [
                f"{one.row} − {one.other}",
                *(
                    text
                    for key in names
                    for text in (f.fixed(one.figures.get(key)), f.within(one.intervals.get(key)))
                ),
            ]
        )
        for one in report.differences
    ]
    heads = [head for name in names.values() for head in (name, "95 %")]
    columns = [Column("at λ=½", Kind.TEXT), *map(Column, heads)]
    return Table("", columns, rows)


def _over_pairs(report: Report, split: str) -> Table:
    """Means over pairs of models, and half their 95 % intervals."""
    rows = [
        TableRow([one.row, *(_mean(mean, one.intervals.get(key)) for key, mean in one.mean.items())])
        for one in report.over_pairs
        if one.split == split
    ]
    title, head = f"Over pairs, on {split} data", f"{split}, {len(report.pairs)} pairs"
    names = [*(f"{name} at λ=½" for name in report.keys.values()), "barrier chord"]
    note = f"over {len(report.pairs)} pairs: mean ± 95 % (Student's t)"
    return _table(title, head, names, rows, note=note)


def _mean(mean: float, interval: Sequence[float] | None) -> str:
    return f"{f.fixed(mean)} ± {f.fixed((interval[1] - interval[0]) / 2)}" if interval else f.fixed(mean)


def _learnt(report: Report) -> Table:
    """What was learnt at the first step, the best, the last, and others between."""
    seen: list[Mapping[str, float]] = [*f.learning(report.match)]
    rows = []
    names = ["loss", ACCURACY.name] if report.classifies else ["loss"]
    kept = seen.index(f.best(seen)) if seen else 0
    even = {round(k * (len(seen) - 1) / (LEARNT - 2)) for k in range(LEARNT - 1)}
    for k in sorted({*even, kept}) if seen else ():
        step = f"{seen[k]['step']:.0f}" + ", the best" * (k == kept)
        rows.append(TableRow([step, *(f.fixed(seen[k].get(f"held_out_{name}")) for name in names)]))
    head = "held-out samples at the midpoint, by step"
    return _table("By step", head, names, rows, on=On.WRITTEN)


def gates(found: Sequence[GateResult], limits: Sequence[float] = ()) -> Table:
    """The gates, a column for the step where there are steps."""
    stepped = any(gate.step for gate in found)
    rows = []
    for gate, limit in zip_longest(found, limits):
        measured = ("—", "—") if gate.skipped else (f.number(gate.measured), f.number(limit))
        cells: list[Inline] = [
            gate.name,
            mark(gate),
            measured[0],
            measured[1],
            gate.wanted,
            gate.message,
        ]
        tone = Tone.SKIPPED if gate.skipped else Tone.MET if gate.met else Tone.MISSED
        rows.append(TableRow([*[gate.step] * stepped, *cells], tone))
    columns = [
        *[Column("step", Kind.TEXT)] * stepped,
        Column("gate", Kind.TEXT),
        Column("result", Kind.MARK),
        Column("measured", on=On.WRITTEN),
        Column("limit", on=On.PAGE),
        Column("wanted", Kind.TEXT, on=On.SUMMARY),
        Column("in words", Kind.SENTENCE),
    ]
    return Table("Gates" + f": {verdict(found)}" * bool(found), columns, rows)


def _inputs(inputs: Sequence[Mapping[str, Any]]) -> list[Block]:
    """File and digest; what the file records of itself is folded away."""
    rows: list[tuple[str, Inline]] = []
    folds: list[Block] = []
    for letter, model in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", inputs, strict=False):
        known = {key: value for key, value in model.items() if key not in ("file", "recorded")}
        said = [piece for key, value in known.items() for piece in (f", {key} ", _value(value))]
        rows.append((letter, (Code(model.get("file", "?")), *said)))
        if isinstance(recorded := model.get("recorded"), Mapping):
            folds.append(Fold(f"Recorded in {letter}", [Facts("", _values(recorded))]))
    return [Facts("Inputs", rows, on=On.WRITTEN), *folds]


def _values(values: Mapping[str, Any]) -> list[tuple[str, Inline]]:
    return [(str(key), _value(value)) for key, value in values.items() if value is not None]


def _value(value: Any) -> Code:
    if isinstance(value, Mapping | list | tuple):
        return Code(json.dumps(value, ensure_ascii=False, default=str))
    return Code(value)


def _in_full(report: Report) -> list[Block]:
    """What else the parts of the program had to say."""
    match = {key: value for key, value in report.match.items() if key != "history"}  # it is drawn
    parts = {"match": match, "proof": report.proof, "data": report.data, "spec": report.spec}
    return [Facts(name.capitalize(), _values(values)) for name, values in parts.items()]


def _points(report: Report, row: Row) -> Table:
    shown = sorted(row.curves, key=lambda split: (split != "test", split != "train", split))
    keys = report.keys
    names = [f"{split} {name}" for split in shown for name in keys.values()]
    rows = []
    for place in sorted({point for curve in row.curves.values() for point in curve.lambdas}):
        points = [row.curves[split].at(place) or {} for split in shown]
        rows.append(TableRow([f.number(place), *(f.fixed(at.get(key)) for at in points for key in keys)]))
    return Table("", [Column("λ", Kind.TEXT), *map(Column, names)], rows)
