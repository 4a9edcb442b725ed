"""Markdown, for the step summary of a CI run or a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import Report, Row
from ._conclusion import conclude
from ._facts import facts, took
from ._format import (
    CERTAIN,
    COLUMNS,
    LEARNING,
    LEGEND,
    OVER_PAIRS,
    SHIPPED,
    SIGNATURE,
    certain,
    code_pieces,
    endpoint_figures,
    endpoints,
    figures,
    headline,
    learnt,
    over_pairs,
    pairs_heading,
    remark,
    samples,
    signature,
    splits,
    title,
)
from ._gates import results, verdict
from ._markup import code, escape, fence, head, line
from ._summary import table

FILENAME = "report.md"
HELP = "Write the report as Markdown, for a CI summary."


def render(report: Report) -> str:
    """GitHub-flavoured Markdown. Text from outside (file names, gates, notes) is escaped."""
    found = results(report)
    gates = [f"### Gates: {verdict(found)}\n\n{table(found)}"] if found else []
    figures_, *rest = sections(report)
    return "\n\n".join([f"## {escape(title(report))}", figures_, *gates, *rest]) + "\n"


def sections(report: Report) -> list[str]:
    """All but the title and the gates, cut where a summary without room may end."""
    parts = [
        [
            f"**{escape(headline(report))}**",
            escape(conclude(report)),
            *(_table(report, split) for split in splits(report)),
            *_more(report),
        ],
        ["### Notes", "\n".join(f"- {_sentence(note)}" for note in report.notes)] if report.notes else [],
        [
            "### How it was measured",
            "\n".join(f"- {word}: {escape(text)}" for word, text in facts(report)),
            "\n".join(_input(model) for model in report.inputs),
            fence(report.command),
            f"<sub>{escape(LEGEND)} ▸ {_sentence(SHIPPED)}.</sub>",
            f"<sub>took {escape(took(report.times))}</sub>" if report.times else "",
        ],
    ]
    return ["\n\n".join(filter(None, part)) for part in parts if part]


def _table(report: Report, split: str) -> str:
    lines = head([f"**{escape(split)}** {samples(report, split)}".strip(), *COLUMNS], numbers=True)
    for letter, file, ends in endpoints(report):
        lines.append(line([f"{letter}: {escape(file)}", *map(escape, endpoint_figures(ends, split)), "", ""]))
    for row in report.rows:
        name = escape(row.name) + (" *(control)*" if row.control else "")
        cells = [name, *figures(row, split)[: len(COLUMNS)]]
        if row.shipped:
            cells = [f"▸ **{cells[0]}**", *(f"**{cell}**" for cell in cells[1:])]
        lines.append(line(cells))
    return "\n".join(lines)


def _more(report: Report) -> list[str]:
    """Intervals on the first split, means over pairs, the signature, what was learnt, if there are any."""
    split, blocks = next(iter(splits(report)), ""), []
    if found := certain(report, split):
        rows = [(_named(name, row), cells) for name, row, cells in found]
        blocks.append(_columns(f"**{escape(split)}**, 95 % at λ=½", CERTAIN, rows))
    if over := over_pairs(report, split):
        rows = [(escape(name), cells) for name, cells in over]
        blocks.append(_columns(f"**{escape(split)}**, {pairs_heading(report)}", OVER_PAIRS, rows))
    if words := signature(report):
        rows = [(escape(word), cells) for word, cells in words]
        blocks.append(_columns("matched correlation, mean ± std over units", SIGNATURE, rows))
    if rows := learnt(report):
        blocks.append(_columns("held-out samples at the midpoint, by step", LEARNING, rows))
    return blocks


def _named(name: str, row: Row | None) -> str:
    told = f" ({escape(remark(row))})" if row and remark(row) else ""
    return f"▸ **{escape(name)}**{told}" if row and row.shipped else f"{escape(name)}{told}"


def _columns(heading: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    return "\n".join(
        [
            *head([heading, *columns], numbers=True),
            *(line([name, *map(escape, cells)]) for name, cells in rows),
        ]
    )


def _input(model: Mapping[str, Any]) -> str:
    digest = model.get("sha256")
    return f"- {code(model.get('file', '?'))}" + (f", sha256 {code(digest)}" if digest else "")


def _sentence(text: str) -> str:
    return "".join(code(piece) if is_code else escape(piece) for piece, is_code in code_pieces(text))
