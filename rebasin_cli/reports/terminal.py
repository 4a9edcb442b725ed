"""A compact table for the terminal, readable at 80 columns and without colour."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import Report
from ._conclusion import conclude
from ._facts import facts, took
from ._format import (
    CERTAIN,
    COLUMNS,
    LEGEND,
    OVER_PAIRS,
    SHIPPED,
    SIGNATURE,
    certain,
    clean,
    endpoint_figures,
    endpoints,
    figures,
    headline,
    over_pairs,
    pairs_heading,
    remark,
    samples,
    signature,
    splits,
    tail,
    title,
)
from ._gates import GateResult, results, shouted

FILENAME = None  # for the screen; report.md is its twin for a folder

WIDEST = 100  # figures far from their row's name are hard to follow


def render(report: Report, *, width: int | None = None, color: bool | None = None) -> str:
    """What `show` prints, as text: `width` columns (80), with ANSI colours only if `color`.

    The environment is not asked, so that equal reports give equal text.
    """
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
    show(report, console)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def show(report: Report, console: Console) -> None:
    """Print the report: headline, one table a split, gates, how it was made, notes, the legend."""
    width = min(console.width, WIDEST)

    def put(renderable: object, left: int = 1) -> None:
        console.print(Padding(renderable, (0, 0, 0, left)), width=width, highlight=False)

    put(Text(title(report), style="bold"))
    put(Text(headline(report)))
    if conclusion := conclude(report):
        put(Text(conclusion, style="bold"))
    for split in splits(report):
        console.print()
        put(_table(report, split, width - 1), left=0)
    for table in (_certain(report, width - 1), _over_pairs(report, width - 1), _signature(report, width - 1)):
        if table is not None:
            console.print()
            put(table, left=0)
    console.print()
    if found := results(report):
        put(_gates(found))
        console.print()
    lines = [*facts(report), *(("note", clean(note)) for note in report.notes)]
    put(_pairs(lines + ([("took", took(report.times))] if report.times else [])))
    console.print()
    put(Text(f"{LEGEND} ▸ {SHIPPED}.", style="dim"))


def _table(report: Report, split: str, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, width=width, pad_edge=False, padding=(0, 1), show_edge=False)
    heading = Text(f"   {clean(split)}")
    heading.append(f"\n   {samples(report, split)}", style="not bold dim")
    table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=1)
    for column in COLUMNS:
        first, _, second = column.partition(" ")
        table.add_column(Text(f"{first}\n{second}"), justify="right", no_wrap=True, min_width=9)
    room = width - 4 * 11 - 4
    for letter, file, ends in endpoints(report):
        table.add_row(f"   {letter}  {tail(file, room - 6)}", *map(_figure, endpoint_figures(ends, split)))
    table.add_section()
    for row in report.rows:
        label = Text(f" {'▸' if row.shipped else ' '} {_fitting(clean(row.name), room - 3)}")
        if row.control and label.cell_len + len("  control") <= room:
            label.append("  control", style="dim")
        cells = map(_figure, figures(row, split)[: len(COLUMNS)])
        table.add_row(label, *cells, style="bold" if row.shipped else None)
    return table


def _small(heading: str, columns: Sequence[str], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, width=width, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column(Text(f"   {heading}"), no_wrap=True, overflow="ellipsis", ratio=1)
    for column in columns:
        table.add_column(Text(column), justify="right", no_wrap=True)
    return table


def _fitting(name: str, room: int) -> str:
    """A row's name, its longest word short where it would be cut."""
    return name if len(name) <= room else name.replace(" + temperature", " + temp.")


def _certain(report: Report, width: int) -> Table | None:
    """Intervals on the first split; the barrier's is in the other formats, which have the room."""
    split = next(iter(splits(report)), "")
    if not (found := certain(report, split)):
        return None
    table = _small(f"{clean(split)}, 95 % at λ=½", [CERTAIN[0], CERTAIN[1], CERTAIN[3]], width)
    for name, row, cells in found:
        label = Text(f" {'▸' if row and row.shipped else ' '} {_fitting(clean(name), width - 62)}")
        if row and remark(row):
            label.append(f"  {remark(row)}", style="dim")
        chosen = (cells[0], cells[1], cells[3])
        table.add_row(label, *chosen, style="bold" if row and row.shipped else None)
    return table


def _over_pairs(report: Report, width: int) -> Table | None:
    split = next(iter(splits(report)), "")
    if not (found := over_pairs(report, split)):
        return None
    table = _small(f"{clean(split)}, {len(report.pairs)} pairs", OVER_PAIRS, width)
    for name, cells in found:
        table.add_row(Text(f"   {clean(name)}"), *cells)
    table.caption = Text(pairs_heading(report), style="dim")
    return table


def _signature(report: Report, width: int) -> Table | None:
    if not (found := signature(report)):
        return None
    table = _small("matched correlation", SIGNATURE, width)
    for word, cells in found:
        table.add_row(Text(f"   {word}"), *cells)
    return table


def _figure(text: str) -> Text:
    return Text(text, style="red" if text in ("nan", "inf", "-inf") else "")


def _gates(found: Sequence[GateResult]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for gate in found:
        met = gate.met and not gate.skipped
        said = Text(shouted(gate), style="green" if met else "bold yellow" if gate.skipped else "bold red")
        sentence = Text(clean(gate.name))
        sentence.append(f"\n{clean(gate.message)}", style="dim" if met else "")
        grid.add_row(said, sentence)
    return grid


def _pairs(pairs: list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for word, text in pairs:
        grid.add_row(Text(word, style="cyan"), Text(text))
    return grid
