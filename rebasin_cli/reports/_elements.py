"""What every HTML page is made of: one self-contained file without scripts, links or pictures from elsewhere.

Text from outside (file names, notes) goes through `text` or `sentence`; all else takes HTML.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from ._format import clean, code_pieces
from ._page import STYLE

LONG = 16  # rows: from there on a table has a height of its own

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


def page(title: str, body: Iterable[str], *styles: str) -> str:
    """The whole file; empty parts of the body are left out."""
    style = "\n".join([STYLE.strip(), *filter(None, styles)])
    return _PAGE.format(title=text(title), style=style, body="\n".join(filter(None, body)))


def header(title: str, *lines: str, badge: str = "") -> str:
    said = "\n".join(f"<p>{line}</p>" for line in lines if line)
    return f"<header>\n<h1>{text(title)}</h1>\n{said}\n{badge}\n</header>"


def text(value: Any) -> str:
    return html.escape(clean(value), quote=True)


def sentence(value: Any) -> str:
    """A note or a line of ours, in which `words` in backquotes are code."""
    return "".join(f"<code>{text(p)}</code>" if code else text(p) for p, code in code_pieces(clean(value)))


def breakable(value: Any) -> str:
    """Text that may be broken after colons and slashes and before limits, and nowhere within a number."""
    shown = text(value)
    for mark in (":", "/", ","):
        shown = shown.replace(mark, f"{mark}<wbr>")
    return shown.replace("&lt;=", "<wbr>&lt;=").replace("&gt;=", "<wbr>&gt;=")


def command(line: str) -> str:
    """A command line that one click or tap selects as a whole, to be copied."""
    return f'<pre class="command" tabindex="0" aria-label="Command line"><code>{text(line)}</code></pre>'


def section(heading: str, content: str) -> str:
    return f"<section>\n<h2>{heading}</h2>\n{content}\n</section>"


def details(summary: str, content: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n{content}\n</details>"


def items(found: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{item}</li>" for item in found) + "\n</ul>"


def pairs(found: Iterable[tuple[str, str]]) -> str:
    return "<dl>\n" + "\n".join(f"<dt>{text(word)}</dt><dd>{what}</dd>" for word, what in found) + "\n</dl>"


def table(caption: str, head: Sequence[tuple[str, str]], rows: Iterable[str]) -> str:
    """`head` holds (text, class) of each column. A wide one scrolls in its box, a long one below its head."""
    rows = list(rows)
    css = "scroll long" if len(rows) > LONG else "scroll"
    cells = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in head)
    body = "\n".join(rows)
    return (
        f'<div class="{css}" tabindex="0" role="region" aria-label="{caption}"><table>\n'
        f"<caption>{caption}</caption>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def tr(head: str, cells: Iterable[str], css: str = "row") -> str:
    row = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    return f'<tr class="{css}"><th scope="row">{head}</th>{row}</tr>'


def hidden(value: str) -> str:
    """For those who hear the page: the head of a column of names, which eyes need not see."""
    return f'<span class="hidden">{text(value)}</span>'
