"""Text made safe for Markdown: one line, one cell, one span of code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..runtime.text import cut
from ._format import clean


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
