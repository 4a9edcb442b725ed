"""A document: a title, a headline and blocks, which every format renders by itself.

What is told of a barrier, a comparison, a signature, two models before a merge, an experiment or a merged
model becomes a `Document` once. Blocks hold plain text: no markup, nothing escaped; the formats clean and
escape whatever they are given. `On` says where a part is shown at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, Flag, auto


class On(Flag):
    """The formats that show a part: a terminal has the least room, a page the most."""

    TERMINAL = auto()
    SUMMARY = auto()  # Markdown
    PAGE = auto()  # HTML
    PICTURE = auto()
    WRITTEN = SUMMARY | PAGE
    DRAWN = PAGE | PICTURE
    ALL = TERMINAL | SUMMARY | PAGE | PICTURE


class Code(str):
    """Text that is shown as code: a command, a digest, a name of the user's."""

    __slots__ = ()


class Link(str):
    """Text that leads to `target`, a file beside this one, where the format has links to files."""

    target: str

    def __new__(cls, text: str, target: str) -> Link:
        made = super().__new__(cls, text)
        made.target = target
        return made


Inline = str | tuple[str, ...]  # text, or pieces of it, some of them `Code` or a `Link`


def coded(sentence: str) -> Inline:
    """A sentence of ours or a note, whose words in `backquotes` are code."""
    pieces = re.split(r"`([^`]+)`", sentence)
    return tuple(Code(piece) if place % 2 else piece for place, piece in enumerate(pieces) if piece)


def plain(text: Inline) -> str:
    return text if isinstance(text, str) else "".join(text)


class Kind(Enum):
    """What a column holds. Rows with a SENTENCE become entries where there is little room."""

    NUMBER = "n"
    TEXT = "text"
    MARK = "mark"  # a word that says whether all is well
    SENTENCE = "sentence"


class Tone(Enum):
    """How a row, or a badge, stands out."""

    PLAIN = "row"
    CHOSEN = "chosen"  # the one that counts
    FAINT = "faint"  # for others to be held against
    MET = "met"
    MISSED = "missed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Column:
    name: str
    kind: Kind = Kind.NUMBER
    on: On = On.ALL


@dataclass(frozen=True)
class Row:
    """`cells[0]` names the row; `remarks` stand beside that name in small letters; `last` ends a section."""

    cells: Sequence[Inline]
    tone: Tone = Tone.PLAIN
    remarks: Sequence[str] = ()
    last: bool = False


@dataclass(frozen=True)
class Table:
    """`headed`: the first column's name says what the title does; where there is little room it is enough."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    remark: str = ""  # beside the title
    headed: bool = False
    on: On = On.ALL

    def shown(self, on: On) -> Table:
        """With the columns of one format alone."""
        return self.only([place for place, column in enumerate(self.columns) if on in column.on])

    def only(self, keep: Sequence[int]) -> Table:
        """With these columns alone, by their places."""
        rows = [replace(row, cells=[row.cells[k] for k in keep]) for row in self.rows]
        return replace(self, columns=[self.columns[k] for k in keep], rows=rows)

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True)
class Facts:
    """(word, what is to be said of it)."""

    title: str
    rows: Sequence[tuple[str, Inline]]
    on: On = On.ALL

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True)
class Notes:
    """Sentences, the `strong` ones first to be read; `word` stands before each on a terminal, if any does."""

    title: str
    items: Sequence[Inline]
    word: str = ""
    strong: frozenset[int] = frozenset()
    on: On = On.ALL

    def __bool__(self) -> bool:
        return bool(self.items)


@dataclass(frozen=True)
class Small:
    """A line or two in small letters, such as what the words of a table mean."""

    text: Inline
    on: On = On.ALL

    def __bool__(self) -> bool:
        return bool(self.text)


@dataclass(frozen=True)
class Command:
    """Lines to be copied as a whole; `note` says more of them."""

    title: str
    line: str
    note: str = ""
    language: str = "sh"
    on: On = On.WRITTEN

    def __bool__(self) -> bool:
        return bool(self.line)


Color = tuple[str, str]  # "#rrggbb" on light, on dark


@dataclass(frozen=True)
class Line:
    """What is drawn: points (x, y), joined or not; `between` is a band (low, high), `errors` are ± of each.

    `bars` have a width in x, `tells` are what each point says when it is pointed at, `names` are written
    beside the points. Without a colour or a marker it takes those of its place; marker "" draws none.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    between: Sequence[tuple[float, float]] = ()
    bars: float = 0.0
    dashed: bool = False
    errors: Sequence[float] = ()
    tells: Sequence[str] = ()
    names: Sequence[str] = ()
    color: Color | None = None
    marker: str | None = None
    joined: bool = True
    dotted: bool = False
    heavy: bool = False
    hollow: bool = False
    remark: str = ""  # beside the label, in a legend


@dataclass(frozen=True)
class Surface:
    """Filled contours: `values` (y, x) at the places `x` and `y`, between ascending `levels`.

    What is no number is as bad as can be: at the last level, at the first where `high_is_good`.
    """

    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float]]
    levels: Sequence[float]
    high_is_good: bool


@dataclass(frozen=True)
class Panel:
    """`x` and `y` name the axes, `log` those of "xy" that are logarithmic; `marks` are vertical lines.

    `ticks` of x have words; `floor` and `top` are where the y axis begins and ends: values above `top` leave
    it, with an arrow. `across` are the ends of the x axis.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line] = ()
    log: str = ""
    marks: Sequence[tuple[float, str]] = ()
    floor: float | None = None
    top: float | None = None
    ticks: Sequence[tuple[float, str]] = ()
    across: tuple[float, float] | None = None
    surface: Surface | None = None


@dataclass(frozen=True)
class Figure:
    """Panels with one `legend` for all of them, else each with its own; `alt` says what is to be seen.

    `file` is the picture beside a Markdown file, which shows it where there is one.
    """

    title: str
    panels: Sequence[Panel]
    alt: str
    legend: Sequence[Line] = ()
    note: str = ""
    file: str = ""
    on: On = On.ALL

    def __bool__(self) -> bool:
        return bool(self.panels)


@dataclass(frozen=True)
class Fold:
    """Blocks under one heading: folded away where that is possible, or `open`."""

    title: str
    blocks: Sequence[Block]
    open: bool = False
    on: On = On.PAGE

    def __bool__(self) -> bool:
        return bool(self.blocks)


Block = Table | Facts | Notes | Small | Command | Figure | Fold


@dataclass(frozen=True)
class Badge:
    text: str
    tone: Tone


@dataclass(frozen=True)
class Document:
    title: str
    headline: Sequence[Inline]
    blocks: Sequence[Block]
    badge: Badge | None = None
    name: str = ""  # of the title where there is little room

    def shown(self, on: On) -> list[Block]:
        return shown(self.blocks, on)


def shown(blocks: Iterable[Block], on: On) -> list[Block]:
    """The blocks of one format that hold anything, with the columns that it shows."""
    kept = (block for block in blocks if on in block.on and block)
    return [block.shown(on) if isinstance(block, Table) else block for block in kept]
