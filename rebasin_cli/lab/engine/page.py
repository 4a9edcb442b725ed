"""An experiment's outcome as a document, and the page that lists all of them with their claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ...reports.document import (
    Block,
    Code,
    Column,
    Command,
    Document,
    Figure,
    Inline,
    Kind,
    Link,
    Notes,
    Panel,
    Row,
    Small,
    Table,
    Tone,
    coded,
)
from ...reports.formats import markdown
from ...runtime import files
from .claims import REFUTED, UNDECIDED

DISAGREEMENTS = Path(__file__).with_name("disagreements.yaml")
TONES = {"confirmed": Tone.MET, "refuted": Tone.MISSED, "undecided": Tone.SKIPPED}
CLAIMS = ("source", "what it says", "the number", "expected", "measured", "95 % interval")


def document(made: Mapping[str, Any], panels: Sequence[Panel] = ()) -> Document:
    """What `commands.lab` made of one experiment; `panels` are its picture's, which lies beside the page."""
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    run = f"Seed {made['seed']}, {versions}, {made['threads']} thread(s). {made['date']}, "
    rows = [(Code(name), _cell(value)) for name, value in made["parameters"].items()]
    columns = [*(Column(name, Kind.TEXT) for name in CLAIMS), Column("verdict", Kind.MARK)]
    return Document(
        made["title"],
        [],
        [
            Notes("", [f"{made['paper']}.", coded(made["about"])]),
            figure(made["title"], panels, f"{made['name']}.png"),
            Table("Claims", columns, [_claim(claim) for claim in made["claims"]]),
            *(_table(table["title"], table["columns"], table["rows"]) for table in made["tables"]),
            Notes("", [coded(note) for note in made["notes"]]),
            Command("How", made["command"]),
            _table("Parameters", ("parameter", "value"), rows),
            Small(f"{run}{made['times']['seconds']:.0f} s. What would make it faster: {made['faster']}"),
        ],
    )


def figure(title: str, panels: Sequence[Panel], file: str = "") -> Figure:
    """The panels; where only the picture's file is known, a panel that holds nothing."""
    return Figure("", panels or [Panel("", "", "")], title, file=file)


def page(made: Mapping[str, Any]) -> str:
    """The same as Markdown."""
    return markdown.text(document(made), level=1)


def index(
    every: Sequence[Mapping[str, Any]],
    head: str,
    *,
    minutes: Mapping[str, float],
    others: Mapping[str, Mapping[str, Any]],
) -> str:
    """The list of experiments, and every claim that did not come out as the paper has it.

    `minutes` are what each takes at the full scale; `others` are runs with other parameters, by their pages
    without the ending.
    """
    names = (
        "experiment",
        "what it asks",
        "paper",
        "claims",
        "made by",
        "seconds",
        "full scale",
        "what would make it faster",
    )
    rows: list[Sequence[Inline]] = [
        (
            *(_link(made["name"]), made["title"], made["paper"], _verdicts(made), _made_by(made)),
            *(f"{made['times']['seconds']:.0f}", _long(minutes[made["name"]]), made["faster"]),
        )
        for made in every
    ]
    total = math.fsum(made["times"]["seconds"] for made in every)
    scales, threads = ("/".join(sorted({str(made[key]) for made in every})) for key in ("scale", "threads"))
    date = max((made["date"] for made in every), default="")
    blocks: list[Block] = [
        _table("Experiments", names, rows),
        Small(
            f"All of them took {total / 60:.1f} minutes, {threads} thread(s), scale {scales}, {date}; "
            "seconds are the clock's, to which other work on the machine adds. How long the full scale takes "
            "is reckoned from fewer steps and networks, on one idle thread."
        ),
    ]
    rows = [
        (
            _link(name),
            Code(made["command"]),
            _verdicts(made),
            _long(made["times"]["seconds"] / 60),
            _made_by(made),
        )
        for name, made in others.items()
    ]
    blocks.append(_table("At other scales", ("run", "command", "claims", "took", "made by"), rows))
    full = [
        name for name, made in others.items() if made["scale"] == "full" and "--set" not in made["command"]
    ]
    rows = [(*_claim(claim).cells, _link(name)) for name in full for claim in others[name]["claims"]]
    names = ("paper", "claim", "the number", "the paper's", "ours", "95 % interval", "verdict", "run")
    blocks.append(_table("At the papers' scale", names, rows))
    blocks.append(Notes("", [] if rows else ["Nothing yet."]))
    runs = {made["name"]: made for made in every} | dict(others)
    for word, title in (
        (REFUTED, "What did not come out as the paper says"),
        (UNDECIDED, "What these runs do not decide"),
    ):
        claims = [(_link(name), claim) for name, made in runs.items() for claim in made["claims"]]
        rows = [(*_claim(claim).cells[:-1], link) for link, claim in claims if claim["verdict"] == word]
        blocks.append(_table(title, ("paper", "claim", *CLAIMS[2:], "experiment"), rows))
        blocks.append(Notes(title, [] if rows else ["Nothing."]))
    rows = [(*told, _link(name) if name else "") for *told, name in disagreements()]
    title = "Where papers, programs and mathematics disagree otherwise"
    blocks.append(_table(title, ("paper", "what it says", "what is known", "experiment"), rows))
    return "\n\n".join([head.rstrip(), *markdown.blocks(blocks, 2)]) + "\n"


def disagreements() -> list[tuple[str, str, str, str]]:
    """(paper, what it says, what is known, the experiment that shows it or "")."""
    every = yaml.safe_load(files.text(DISAGREEMENTS, "the disagreements"))
    return [(one["paper"], one["says"], one["known"], one.get("experiment", "")) for one in every]


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Columns of numbers alone stand to the right."""
    rows = [list(row) for row in rows]
    kinds = [
        Kind.NUMBER if rows and all(isinstance(row[k], int | float) for row in rows) else Kind.TEXT
        for k in range(len(names))
    ]
    columns = [Column(name, kind) for name, kind in zip(names, kinds, strict=True)]
    return Table(title, columns, [Row([_cell(value) for value in row]) for row in rows])


def _claim(claim: Mapping[str, Any]) -> Row:
    low, high = claim["expected"]
    known = f"{_cell(low)} … {_cell(high)}" if low != high else _cell(low)
    if low is None or high is None:
        known = f"≤ {_cell(high)}" if low is None else f"≥ {_cell(low)}"
    between = claim["interval"]
    exact = len(between) == 2 and between[0] == between[1]
    told = "exact" if exact else " … ".join(map(_cell, between)) if between else "–"
    measured = (known, _cell(claim["estimate"]), told, claim["verdict"])
    return Row([claim["source"], claim["says"], claim["about"], *measured], TONES[claim["verdict"]])


def _link(page_: str) -> Link:
    return Link(page_, f"{page_}.md")


def _verdicts(made: Mapping[str, Any]) -> str:
    verdicts = [claim["verdict"] for claim in made["claims"]]
    return ", ".join(f"{verdicts.count(word)} {word}" for word in TONES if word in verdicts)


def _made_by(made: Mapping[str, Any]) -> str:
    return f"{made['versions']['rebasin']}, {made['date']}"


def _long(minutes: float) -> str:
    """In seconds, minutes or hours, whichever reads best."""
    if minutes < 2:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _cell(value: Any) -> Any:
    """Text, or a number with four figures that count."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return value if isinstance(value, str) else str(value)
