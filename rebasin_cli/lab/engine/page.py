"""An experiment's outcome as a page of Markdown, and the page that lists all of them with their claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .claims import REFUTED, UNDECIDED
from .disagreements import DISAGREEMENTS

MARKS = {"confirmed": "confirmed", "refuted": "**refuted**", "undecided": "*undecided*"}


def page(made: Mapping[str, Any]) -> str:
    """The page of what `commands.lab` made of one experiment."""
    lines = [f"# {made['title']}", "", f"{made['paper']}.", "", made["about"], ""]
    lines += [f"![{made['title']}]({made['name']}.png)", "", "## Claims", ""]
    columns = ("source", "what it says", "the number", "expected", "measured", "95 % interval", "")
    lines += [*_table(columns, map(_claim, made["claims"])), ""]
    for table in made["tables"]:
        lines += [f"## {table['title']}", "", *_table(table["columns"], table["rows"]), ""]
    lines += [f"- {note}" for note in made["notes"]] + [""] * bool(made["notes"])
    lines += ["## How", "", f"    {made['command']}", ""]
    values = [(f"`{name}`", _cell(value)) for name, value in made["parameters"].items()]
    lines += [*_table(("parameter", "value"), values), ""]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    seconds = made["times"]["seconds"]
    lines += [
        f"Seed {made['seed']}, {versions}, {made['threads']} thread(s). {made['date']}, {seconds:.0f} s."
    ]
    return "\n".join([*lines, f"What would make it faster: {made['faster']}", ""])


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
    lines = [head.rstrip(), "", "## Experiments", ""]
    columns: tuple[str, ...] = (
        "experiment",
        "what it asks",
        "paper",
        "claims",
        "seconds",
        "full scale",
        "what would make it faster",
    )
    rows: list[Sequence[str]] = [
        (
            _link(made["name"]),
            made["title"],
            made["paper"],
            _verdicts(made),
            f"{made['times']['seconds']:.0f}",
            _long(minutes[made["name"]]),
            made["faster"],
        )
        for made in every
    ]
    lines += [*_table(columns, rows), ""]
    total = math.fsum(made["times"]["seconds"] for made in every)
    scales, threads = ({str(made[key]) for made in every} for key in ("scale", "threads"))
    date = max((made["date"] for made in every), default="")
    lines += [
        f"All of them took {total / 60:.1f} minutes, {'/'.join(sorted(threads))} thread(s), scale "
        f"{'/'.join(sorted(scales))}, {date}; seconds are the clock's, to which other work on the machine "
        "adds. How long the full scale takes is reckoned from fewer steps and networks, on one idle thread.",
        "",
    ]
    if others:
        rows = [
            (
                _link(page_),
                f"`{made['command']}`",
                _verdicts(made),
                _long(made["times"]["seconds"] / 60),
                made["date"],
            )
            for page_, made in others.items()
        ]
        columns = ("run", "command", "claims", "took", "date")
        lines += ["## At other scales", "", *_table(columns, rows), ""]
    runs = {made["name"]: made for made in every} | dict(others)
    for word, title in (
        (REFUTED, "What did not come out as the paper says"),
        (UNDECIDED, "What these runs do not decide"),
    ):
        columns = ("paper", "claim", "the number", "expected", "measured", "95 % interval", "experiment")
        rows = [
            (*_claim(claim)[:-1], _link(page_))
            for page_, made in runs.items()
            for claim in made["claims"]
            if claim["verdict"] == word
        ]
        lines += [f"## {title}", "", *(_table(columns, rows) if rows else ["Nothing."]), ""]
    columns = ("paper", "what it says", "what is known", "experiment")
    rows = [(*told, _link(name) if name else "") for *told, name in DISAGREEMENTS]
    lines += ["## Where papers, programs and mathematics disagree otherwise", "", *_table(columns, rows), ""]
    return "\n".join(lines)


def _link(page_: str) -> str:
    return f"[{page_}]({page_}.md)"


def _verdicts(made: Mapping[str, Any]) -> str:
    verdicts = [claim["verdict"] for claim in made["claims"]]
    return ", ".join(f"{verdicts.count(word)} {word}" for word in MARKS if word in verdicts)


def _long(minutes: float) -> str:
    """In seconds, minutes or hours, whichever reads best."""
    if minutes < 2:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _claim(claim: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = claim["expected"]
    known = f"{_cell(low)} … {_cell(high)}" if low != high else _cell(low)
    if low is None or high is None:
        known = f"≤ {_cell(high)}" if low is None else f"≥ {_cell(low)}"
    between = claim["interval"]
    exact = len(between) == 2 and between[0] == between[1]
    told = "exact" if exact else " … ".join(map(_cell, between)) if between else "–"
    verdict = MARKS[claim["verdict"]]
    return claim["source"], claim["says"], claim["about"], known, _cell(claim["estimate"]), told, verdict


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    head = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return head + [f"| {' | '.join(map(_cell, row))} |" for row in rows]


def _cell(value: Any) -> str:
    """Text, or a number with four figures that count."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value).replace("|", "\\|")
