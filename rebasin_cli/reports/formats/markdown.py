"""Markdown, for the step summary of a CI run or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

from ...runtime.text import clean, cut
from .. import Report, barrier
from ..document import (
    Block,
    Code,
    Command,
    Document,
    Facts,
    Figure,
    Fold,
    Inline,
    Kind,
    Link,
    Notes,
    On,
    Row,
    Table,
    Tone,
    shown,
)

FILENAME = "report.md"
HELP = "Write the report as Markdown, for a CI summary."


def render(report: Report) -> str:
    """GitHub-flavoured Markdown. Text from outside (file names, gates, notes) is escaped."""
    return text(barrier.document(report))


def text(document: Document, level: int = 2) -> str:
    """Any document; its title is a heading of this `level`."""
    title = f"{'#' * level} {escape(document.title)}"
    return "\n\n".join([title, *sections(document, level)]) + "\n"


def sections(document: Document, level: int = 2) -> list[str]:
    """All but the title, cut where a summary without room may end."""
    lines = [inline(said) for said in document.headline if said]
    if len(lines) > 1:
        lines[-1] = f"**{lines[-1]}**"
    return ["\n\n".join(lines)] * bool(lines) + [*blocks(document.blocks, level + 1)]


def blocks(found: Iterable[Block], level: int) -> Iterator[str]:
    """Every block that Markdown shows, under a heading of this level where it has a title."""
    for block in shown(found, On.SUMMARY):
        title = getattr(block, "title", "")
        headed = isinstance(block, Table) and block.headed
        remark = f", {escape(block.remark)}" if isinstance(block, Table) and block.remark else ""
        heading = f"{'#' * level} {escape(title)}{remark}" if title and not headed else ""
        yield "\n\n".join(filter(None, [heading, *_block(block, level)]))


def _block(block: Block, level: int) -> Iterator[str]:
    if isinstance(block, Table):
        yield "\n".join([*heads(block), *(row(block, each) for each in block.rows)])
        yield small(block.note)
    elif isinstance(block, Facts):
        yield "\n".join(f"- {escape(word)}: {inline(said)}" for word, said in block.rows)
    elif isinstance(block, Notes):
        marks = ("**" if place in block.strong else "" for place in range(len(block.items)))
        yield "\n".join(
            f"- {mark}{inline(item)}{mark}" for mark, item in zip(marks, block.items, strict=True)
        )
    elif isinstance(block, Command):
        yield fence(block.line, block.language)
        yield escape(block.note)
    elif isinstance(block, Figure):
        yield f"![{escape(block.alt)}]({quote(block.file)})" if block.file else ""
        yield small(block.note)
    elif isinstance(block, Fold):
        yield from blocks(block.blocks, level + 1)
    else:
        yield small(block.text)


def heads(table: Table) -> list[str]:
    """The first two rows of a table."""
    names = [escape(column.name) for column in table.columns]
    if table.headed:
        names[0] = f"**{names[0]}** {escape(table.remark)}".strip()
    return head(names, [column.kind is Kind.NUMBER for column in table.columns])


def row(table: Table, found: Row) -> str:
    """One row of the figures; what is chosen is bold, what others are held against is slanted."""
    stress = {Tone.CHOSEN: "**", Tone.FAINT: "*"}.get(found.tone, "")
    cells = [inline(cell).strip() for cell in found.cells]
    cells = [f"{stress}{cell}{stress}" if cell else "" for cell in cells]
    cells[0] = "▸ " * (found.tone is Tone.CHOSEN) + cells[0]
    cells[0] += f" *({escape(', '.join(found.remarks))})*" * bool(found.remarks)
    if found.tone in (Tone.MISSED, Tone.SKIPPED):
        marks = zip(cells, table.columns, strict=True)
        cells = [f"**{cell}**" if column.kind is Kind.MARK else cell for cell, column in marks]
    return line(cells)


def inline(said: Inline) -> str:
    return "".join(map(_piece, (said,) if isinstance(said, str) else said))


def _piece(piece: str) -> str:
    if isinstance(piece, Link):
        return f"[{escape(piece)}]({quote(piece.target)})"
    return code(piece) if isinstance(piece, Code) else escape(piece)


def small(said: Inline) -> str:
    return f"<sub>{inline(said)}</sub>" if said else ""


def escape(text: object) -> str:
    """`text` on one line, with whatever Markdown, HTML or GitHub would take for markup made literal.

    Of one that is too long its beginning and its end, here and in `code`.
    """
    escaped = re.sub(r"([\\`*_\[\]<>|~$&#@])", r"\\\1", clean(cut(text)))
    # A mention or an address works in spite of a backslash; an entity does not.
    escaped = escaped.replace("\\@", "&#64;").replace("://", "&#58;//")
    return re.sub(r"(?i)(www)\.", r"\1&#46;", escaped)


def code(text: object) -> str:
    """A code span whose fence is longer than any run of backquotes inside; also in a table."""
    text = clean(cut(text))
    if "|" in text:  # it ends a cell, in a span as well: what stood behind it would be Markdown
        return f"<code>{re.sub(r'[^A-Za-z0-9 ]', lambda found: f'&#{ord(found[0])};', text)}</code>"
    longest = max(map(len, re.findall("`+", text)), default=0)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{'`' * (longest + 1)}{pad}{text}{pad}{'`' * (longest + 1)}" if text else ""


def fence(text: str, language: str = "sh") -> str:
    marks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    shown = "\n".join(map(clean, text.rstrip().split("\n")))
    return f"{marks}{language}\n{shown}\n{marks}"


def line(cells: Iterable[str]) -> str:
    """One row of a table; the cells are Markdown already."""
    return f"| {' | '.join(cells)} |"


def head(columns: Sequence[str], numbers: Sequence[bool] = ()) -> list[str]:
    """The first two rows of a table; the columns of `numbers` stand to the right."""
    right = [*numbers, *[False] * (len(columns) - len(numbers))]
    return [line(columns), line("---:" if number else "---" for number in right)]
