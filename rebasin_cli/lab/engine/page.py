"""An experiment's outcome as a page of Markdown, and the page that lists all of them with their claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .claims import REFUTED, UNDECIDED

# Where papers and their programs or mathematics disagree, and no experiment here measures it.
ELSEWHERE = (
    (
        "STE-MM §5",
        "MLPs are trained for at most 100 epochs",
        "its program trains 5, and keeps the best on test data",
    ),
    (
        "STE-MM §6.2",
        "sharpness, of data that is not named",
        "its program takes test data; many-models takes both",
    ),
    (
        "Neuron Alignment E.4",
        "10 permutations are kept of a doubly stochastic matrix",
        "its program keeps 11",
    ),
    (
        "Git Re-Basin §3.1",
        "correlation matches as well as inner products",
        "measured by others on VGG: it does not",
    ),
    (
        "Git Re-Basin Figure 4",
        "no barrier for ResNet20 32 times as wide",
        "measured by others: 0.043 train, 0.161 test",
    ),
    ("Neuron Alignment C.1", "distances to aligned models are bounded, eq. 25", "proven of the bounds alone"),
    ("Git Re-Basin A.8", "λ > 5dα", "larger than it has to be: hardness has the smallest"),
)

MARKS = {"confirmed": "confirmed", "refuted": "**refuted**", "undecided": "*undecided*"}


def page(made: Mapping[str, Any]) -> str:
    """The page of what `commands.lab` made of one experiment."""
    lines = [f"# {made['title']}", "", f"{made['paper']}.", "", made["about"], ""]
    lines += [f"![{made['title']}]({made['name']}.png)", "", "## Claims", ""]
    head = ("source", "what it says", "the number", "expected", "measured", "95 % interval", "")
    lines += [*_table(head, map(_claim, made["claims"])), ""]
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


def index(every: Sequence[Mapping[str, Any]], head: str) -> str:
    """The list of experiments, and every claim that did not come out as the paper has it."""
    lines = [head.rstrip(), "", "## Experiments", ""]
    rows = []
    for made in every:
        verdicts = [claim["verdict"] for claim in made["claims"]]
        told = ", ".join(f"{verdicts.count(word)} {word}" for word in MARKS if word in verdicts)
        seconds = f"{made['times']['seconds']:.0f}"
        rows.append(
            (
                f"[{made['name']}]({made['name']}.md)",
                made["title"],
                made["paper"],
                made["scale"],
                told,
                seconds,
            )
        )
    columns = ("experiment", "what it asks", "paper", "scale", "claims", "seconds")
    lines += [*_table(columns, rows), ""]
    total = math.fsum(made["times"]["seconds"] for made in every)
    lines += [
        f"All of them took {total / 60:.1f} minutes, {every[0]['threads']} thread(s), {every[0]['date']}.",
        "",
    ]
    for word, title in (
        (REFUTED, "What did not come out as the paper says"),
        (UNDECIDED, "What these runs do not decide"),
    ):
        head = ("paper", "claim", "the number", "expected", "measured", "95 % interval", "experiment")
        rows = [
            (*_claim(claim)[:-1], f"[{made['name']}]({made['name']}.md)")
            for made in every
            for claim in made["claims"]
            if claim["verdict"] == word
        ]
        lines += [f"## {title}", "", *(_table(head, rows) if rows else ["Nothing."]), ""]
    head = ("paper", "what it says", "what is known")
    lines += ["## Where papers and their programs disagree otherwise", "", *_table(head, ELSEWHERE), ""]
    return "\n".join(lines)


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
