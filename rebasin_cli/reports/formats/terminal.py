"""A compact table for the terminal, readable at 80 columns and without colour."""

from __future__ import annotations

import io
import re
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ...runtime.text import line as in_line
from .. import Report, barrier
from ..document import (
    Block,
    Column,
    Command,
    Document,
    Facts,
    Inline,
    Kind,
    Notes,
    On,
    Row,
    Small,
    Table,
    Tone,
    plain,
)
from ..format import tail

FILENAME = None  # for the screen; report.md is its twin for a folder

WIDEST = 100  # figures far from their row's name are hard to follow
LONG = 9  # letters of a column's name: a longer one takes two lines
LEAST = 12  # letters of a name, or of a remark that is cut
NAMED = 19  # the same beside figures with one space between them: that of "aligned + repair"
TONES = {Tone.CHOSEN: "bold", Tone.FAINT: "dim italic"}
MARKS = {Tone.MET: "green", Tone.MISSED: "bold red", Tone.SKIPPED: "bold yellow"}


def render(report: Report, *, width: int | None = None, color: bool | None = None) -> str:
    """What `show` prints, as text: `width` columns (80), with ANSI colours only if `color`.

    The environment is not asked, so that equal reports give equal text.
    """
    return text(barrier.document(report), width=width, color=color)


def text(document: Document, *, width: int | None = None, color: bool | None = None) -> str:
    """Any document, as `render`."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=width or 80,
        height=100,
        force_terminal=bool(color),
        color_system="standard" if color else None,
        no_color=not color,
        force_jupyter=False,
        legacy_windows=False,
    )
    show(document, console)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def show(document: Document, console: Console | None = None) -> None:
    """Print it: title, headline, then the blocks; facts and notes that follow each other are one list."""
    console = console or Console()
    width = min(console.width, WIDEST)

    def put(renderable: object, left: int = 1) -> None:
        console.print(Padding(renderable, (0, 0, 0, left), expand=False), width=width, highlight=False)  # type: ignore[arg-type]

    put(_text(document.title, "bold"))
    said = [said for said in document.headline if said]
    for place, one in enumerate(said, start=1):
        put(_text(one, "bold" if place == len(said) > 1 else ""))
    pairs: list[tuple[str, Inline]] = []
    for block in [*document.shown(On.TERMINAL), None]:
        if (listed := _listed(block)) is not None:
            pairs += listed
            continue
        if pairs:
            console.print()
            put(_pairs(pairs))
            pairs = []
        if isinstance(block, Notes):
            console.print()
            for place, item in enumerate(block.items):
                _whole(f"{'!' if place in block.strong else '·'} {plain(item)}", console)
        elif isinstance(block, Command):
            _whole(f"{block.title}  {block.line}", console)
        elif isinstance(block, Small):
            console.print()
            put(_text(block.text, "dim"))
        elif isinstance(block, Table):
            console.print()
            if not block.headed and block.title:
                put(_text(block.title + f", {block.remark}" * bool(block.remark), "bold"))
            if any(column.kind is Kind.SENTENCE for column in block.columns):
                put(_entries(block))
            else:
                for part in _parts(block, width - 1):
                    put(_table(part, width - 1), left=int(not block.headed))
            if block.note:
                put(_text(block.note, "dim"))


def _whole(said: str, console: Console) -> None:
    """A line that is not broken, to be copied or looked for."""
    console.print(Text(f" {line(said)}"), highlight=False, soft_wrap=True)


def line(value: object) -> str:
    """As a line of a terminal that may be broken anywhere: no part of it commands a CI system."""
    return re.sub("::(?=[A-Za-z])", ": :", in_line(value))


def _listed(block: Block | None) -> list[tuple[str, Inline]] | None:
    """What stands as a word and a sentence; None for all that does not."""
    if isinstance(block, Facts):
        return list(block.rows)
    return [(block.word, item) for item in block.items] if isinstance(block, Notes) and block.word else None


def _text(said: Inline, style: str = "") -> Text:
    return Text(line(plain(said)), style=style)


def _parts(table: Table, most: int) -> list[Table]:
    """The table; or some of its columns each, where all of them leave no room for the names of rows."""
    sizes, count = _sizes(table, most), len(table.columns)
    enough = min(
        NAMED if sizes.parted == 1 else LEAST, sizes.needed
    )  # names are folded where figures are close
    if count < 3 or sizes.room >= enough:
        return [table]
    halves = range(1, (count + 2) // 2), range((count + 2) // 2, count)
    return [part for half in halves for part in _parts(table.only([0, *half]), most)]


class _Sizes(NamedTuple):
    """Of a table's columns: headings, what lies between them, the least of one; and of the names of its rows
    the room, and what they need."""

    heads: list[str]
    parted: int
    least: int
    room: int
    needed: int


def _sizes(table: Table, most: int) -> _Sizes:
    columns = list(zip(table.columns, zip(*(row.cells for row in table.rows), strict=True), strict=True))
    marked = table.headed or any(row.tone is Tone.CHOSEN for row in table.rows)
    whole = [_heading(column.name) for column, _ in columns]
    narrow = [line(column.name).replace(" ", "\n") for column, _ in columns]  # a word a line
    # Columns of tables below each other are alike; padding, and what parts columns.
    for heads, parted, least in ((whole, 3, LONG * table.headed), (narrow, 1, 0)):
        longest = _widths(heads, columns)
        room = most - sum(max(size, least) + parted for size in longest[1:])
        found = _Sizes(heads, parted, least, room, longest[0] + 3 * marked)
        if room >= min(LEAST, found.needed):
            break
    return found


def _table(table: Table, most: int) -> Grid:
    """A headed one is as wide as allowed. Names are cut, or broken where figures leave hardly any room."""
    heads, parted, least, room, needed = _sizes(table, most)
    marked = table.headed or any(row.tone is Tone.CHOSEN for row in table.rows)
    width = most if table.headed or needed > room else None
    grid = Grid(box=box.SIMPLE_HEAD, width=width, pad_edge=False, padding=(0, parted // 2), show_edge=False)
    heading = Text(f"{'   ' * marked}{line(table.columns[0].name)}")
    if table.headed and table.remark:
        heading.append(f"\n   {line(table.remark)}", style="not bold dim")
    fits = room >= (needed if parted == 1 else min(LEAST, needed))
    grid.add_column(heading, no_wrap=fits, overflow="ellipsis" if fits else "fold", ratio=1)
    for column, head in zip(table.columns[1:], heads[1:], strict=True):
        right = column.kind is Kind.NUMBER
        grid.add_column(
            Text(head),
            justify="right" if right else "left",
            no_wrap=fits and right,
            min_width=least * fits or None,
        )
    for row in table.rows:
        style = TONES.get(row.tone)
        grid.add_row(
            _name(row, room, marked), *map(_figure, row.cells[1:]), style=style, end_section=row.last
        )
    return grid


def _widths(heads: list[str], columns: list[tuple[Column, tuple[Inline, ...]]]) -> list[int]:
    """Of each column the longest line of its heading and of its cells."""
    return [
        max(map(cell_len, [*head.split("\n"), *map(plain, cells)]))
        for head, (_, cells) in zip(heads, columns, strict=True)
    ]


def _heading(name: str) -> str:
    """A long name takes two lines, of about one length."""
    name = line(name)
    places = [place for place, letter in enumerate(name) if letter == " "] if len(name) > LONG else []
    cut = min(places, key=lambda place: max(place, len(name) - place), default=0)
    return f"{name[:cut]}\n{name[cut + 1 :]}" if cut else name


def _name(row: Row, room: int, marked: bool) -> Text:
    """What a row is called, and its remarks as far as there is room: of a single one, its end."""
    mark = f" {'▸' if row.tone is Tone.CHOSEN else ' '} " * marked
    label = Text(mark + line(plain(row.cells[0])))
    said, left = [line(remark) for remark in row.remarks], room - label.cell_len - 2
    if len(said) == 1 and left >= LEAST:
        said = [tail(said[0], left)]  # which is what tells two files apart
    while said and len(", ".join(said)) > left:
        said.pop()
    return label.append(f"  {', '.join(said)}", style="dim") if said else label


def _figure(said: Inline) -> Text:
    return _text(said, "red" if said in ("nan", "inf", "-inf") else "")


def _entries(table: Table) -> Grid:
    """A row whose columns hold sentences, as two lines beside its mark; what is not met is shouted."""
    grid = Grid.grid(padding=(0, 2, 0, 0))
    marks: list[int] = []
    others: list[int] = []
    for place, column in enumerate(table.columns):
        (marks if column.kind is Kind.MARK else others).append(place)
    for row in table.rows:
        mark = " ".join(plain(row.cells[k]) for k in marks)
        good = row.tone not in (Tone.MISSED, Tone.SKIPPED)
        entry = _text(row.cells[others[0]])
        for place in others[1:]:
            if row.cells[place]:
                entry.append("\n").append(_text(row.cells[place], "dim" if good else ""))
        grid.add_row(_text(mark if good else mark.upper(), MARKS.get(row.tone, "")), entry)
    return grid


def _pairs(pairs: list[tuple[str, Inline]]) -> Grid:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for word, said in pairs:
        grid.add_row(_text(word, "cyan"), _text(said))
    return grid
