"""The part of docs/ci.md that is written from what the played jobs left."""

from __future__ import annotations

import re
from pathlib import Path

from . import cases
from .cases import COLUMNS, Case
from .runner import ROOT, Job

PAGE = ROOT / "docs" / "ci.md"
LOGS = Path(__file__).with_name("logs.md")
TABLE = re.compile(r"(?s)(<!-- ends -->\n\n)(.*?)(\n<!-- end -->)")
NUMBER = re.compile(r"\b[0-9a-f]{8,}\b|\d[\d.,:TZ]*(?:e[+-]?\d+)?")


def rows(path: Path = PAGE) -> dict[str, dict[str, str]]:
    """The rows of the table, by their first cell."""
    found = TABLE.search(path.read_text(encoding="utf-8"))
    assert found, f"{path} has no table of ends"
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[2].splitlines()[2:]]
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in cells}


def logs(path: Path = LOGS) -> dict[str, list[str]]:
    """The last lines of every case's log, by its name."""
    blocks = re.findall(r"(?ms)^## ([^\n]+)\n\n```text\n(.*?)\n?```$", path.read_text(encoding="utf-8"))
    return {name: text.splitlines() for name, text in blocks}


def check(case: Case, job: Job) -> None:
    """Fail unless the page says what this job left; figures in its log may be others."""
    shown = rows().get(case.name)
    now = cases.row(case, job)
    assert shown == now, f"docs/ci.md is not current: python -m tests.ci\n{shown}\n{now}"
    told, said = logs().get(case.name, []), shown_of(now, cases.log(job))
    assert plain(told) == plain(said), "tests/ci/logs.md is not current: " + "\n".join(said)


def shown_of(row: dict[str, str], log: list[str]) -> list[str]:
    """What the page shows of a log: nothing of one that passed, no annotation, which says it again."""
    return [] if row["exit code"] == "0" else [line for line in log if not line.startswith("::")]


def plain(lines: list[str]) -> str:
    """Lines without figures, and without the place where they end: these are others on another day."""
    return NUMBER.sub("#", " ".join(" ".join(lines).split()))


def write(found: dict[str, dict[str, str]], said: dict[str, list[str]]) -> None:
    """Put rows and logs into the pages."""
    lines = [f"| {' | '.join(cells)} |" for cells in (COLUMNS, ["---"] * len(COLUMNS))]
    lines += [f"| {' | '.join(row.values())} |" for row in found.values()]
    text = PAGE.read_text(encoding="utf-8")
    text, count = TABLE.subn(lambda match: match[1] + "\n".join(lines) + "\n" + match[3], text)
    assert count == 1
    PAGE.write_text(text, encoding="utf-8")
    head = LOGS.read_text(encoding="utf-8").partition("\n## ")[0].rstrip()
    shown = {name: lines for name, log in said.items() if (lines := shown_of(found[name], log))}
    blocks = [f"## {name}\n\n```text\n" + "\n".join(lines) + "\n```" for name, lines in shown.items()]
    LOGS.write_text("\n\n".join([head, *blocks]) + "\n", encoding="utf-8")
