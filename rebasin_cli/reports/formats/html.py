"""One self-contained page, light and dark, with everything the report holds (HTML)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.text import clean
from .. import Report, barrier, pictures
from ..document import Block, Code, Document, Figure, Fold, Inline, Line, On, shown

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

FILENAME = "report.html"
HELP = "Write the report as one HTML file."
TEMPLATES = Path(__file__).parents[1] / "templates"


def render(report: Report) -> str:
    """HTML without scripts or links to elsewhere; text from outside (file names, notes) is escaped."""
    return page(barrier.document(report))


def page(document: Document) -> str:
    """Any document as one file."""
    drawn = [panel for figure in _figures(document.blocks) for panel in figure.panels]
    made = _environment().get_template("page.html").render(document=document, colors=pictures.colors(drawn))
    return made.strip() + "\n"


def _figures(blocks: Iterable[Block]) -> Iterator[Figure]:
    for block in shown(blocks, On.PAGE):
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Fold):
            yield from _figures(block.blocks)


@functools.cache
def _environment() -> Environment:
    """Escapes whatever it is given, and cleans it first: no template has to think of either."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.tests["code"] = lambda piece: isinstance(piece, Code)
    made.filters |= {
        "pieces": lambda text: (text,) if isinstance(text, str) else text,
        "kind": lambda block: type(block).__name__,
        "shown": lambda blocks: shown(blocks, On.PAGE),
        "breakable": _breakable,
        "unbroken": lambda text: text.replace(" = ", "\u00a0=\u00a0"),  # `T = 0.36` stays on one line
        "svg": lambda panel, figure: Markup(  # noqa: S704 (escaped)
            pictures.svg(panel, f"{panel.title}: {figure.alt}")
        ),
        "keys": _keys,
    }
    return made


def _keys(figure: Figure) -> list[tuple[Line, str, str]]:
    """What is what, below the panels: (line, the variable of its colour, its sign)."""
    lines = figure.legend or [line for panel in figure.panels[:1] for line in panel.lines if line.label]
    return [(line, *pictures.key(line, place)) for place, line in enumerate(lines)]


def _breakable(value: Inline) -> Markup:
    """Text that may be broken after colons and slashes and before limits, and nowhere within a number."""
    from markupsafe import Markup, escape

    escaped = str(escape(clean(value)))
    for mark in (":", "/", ","):
        escaped = escaped.replace(mark, f"{mark}<wbr>")
    return Markup(escaped.replace("&lt;=", "<wbr>&lt;=").replace("&gt;=", "<wbr>&gt;="))  # noqa: S704
