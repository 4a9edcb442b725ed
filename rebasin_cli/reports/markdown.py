"""Markdown, for the step summary of a CI run or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import Report, Row
from ._conclusion import conclude
from ._format import (
    CERTAIN,
    COLUMNS,
    LEARNING,
    LEGEND,
    OVER_PAIRS,
    SHIPPED,
    SIGNATURE,
    certain,
    clean,
    code_pieces,
    endpoint_figures,
    endpoints,
    facts,
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
    verdict,
)

FILENAME = "report.md"
HELP = "Write the report as Markdown, for a CI summary."


def render(report: Report) -> str:
    """GitHub-flavoured Markdown. Text from outside (file names, gates, notes) is escaped."""
    blocks = [
        f"## {escape(title(report))}",
        f"**{escape(headline(report))}**",
        escape(conclude(report)),
        *(_table(report, split) for split in splits(report)),
        *_more(report),
        *_gates(report),
        *(["### Notes", "\n".join(f"- {_sentence(note)}" for note in report.notes)] if report.notes else []),
        "### How it was measured",
        "\n".join(f"- {word}: {escape(text)}" for word, text in facts(report)),
        "\n".join(_input(model) for model in report.inputs),
        fence(report.command),
        f"<sub>{escape(LEGEND)} ▸ {_sentence(SHIPPED)}.</sub>",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(report: Report, split: str) -> str:
    lines = [
        _line([f"**{escape(split)}** {samples(report, split)}".strip(), *COLUMNS]),
        _line(["---", *["---:"] * len(COLUMNS)]),
    ]
    for letter, file, ends in endpoints(report):
        lines.append(_line([f"{letter}: {escape(file)}", *endpoint_figures(ends, split), "", ""]))
    for row in report.rows:
        name = escape(row.name) + (" *(control)*" if row.control else "")
        cells = [name, *figures(row, split)[: len(COLUMNS)]]
        if row.shipped:
            cells = [f"▸ **{cells[0]}**", *(f"**{cell}**" for cell in cells[1:])]
        lines.append(_line(cells))
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
    lines = [_line([heading, *columns]), _line(["---", *["---:"] * len(columns)])]
    return "\n".join([*lines, *(_line([name, *map(escape, cells)]) for name, cells in rows)])


def _input(model: Mapping[str, Any]) -> str:
    digest = model.get("sha256")
    return f"- {code(model.get('file', '?'))}" + (f", sha256 {code(digest)}" if digest else "")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _gates(report: Report) -> list[str]:
    if not report.gates:
        return []
    lines = [_line(["gate", "result", "measured"]), _line(["---"] * 3)]
    for gate in report.gates:
        mark = "✓ met" if gate.met else "**✗ not met**"
        lines.append(_line([escape(gate.text), mark, escape(gate.detail)]))
    return [f"### Gates: {verdict(report)}", "\n".join(lines)]


def _sentence(text: str) -> str:
    return "".join(code(piece) if is_code else escape(piece) for piece, is_code in code_pieces(text))


def escape(text: object) -> str:
    """`text` on one line, with whatever Markdown, HTML or GitHub would take for markup made literal."""
    escaped = re.sub(r"([\\`*_\[\]<>|~$&#@])", r"\\\1", clean(text))
    # A mention or an address works in spite of a backslash; an entity does not.
    return escaped.replace("\\@", "&#64;").replace("://", "&#58;//")


def code(text: object) -> str:
    """A code span whose fence is longer than any run of backquotes inside."""
    text = clean(text)
    longest = max(map(len, re.findall("`+", text)), default=0)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{'`' * (longest + 1)}{pad}{text}{pad}{'`' * (longest + 1)}" if text else ""


def fence(text: str) -> str:
    marks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{marks}sh\n{clean(text)}\n{marks}"
