"""The step summary of a CI run as Markdown: what a person sees of a job without opening its log."""

from __future__ import annotations

from collections.abc import Sequence

from ..runtime.text import line as cut
from . import barrier
from ._gates import Case, Ended, GateResult, baselines, verdict
from ._markup import escape, fence
from .document import On
from .formats import markdown

MOST = 1 << 20  # bytes of a step summary: GitHub refuses more
SPARE = 512  # bytes, for the sentence that says what was left out
DETAILS, LONGEST = 40, 1_000  # lines of what is said of a failure, and letters of each


def summary(
    found: Sequence[Case], sections: Sequence[str] = (), *, title: str = "rebasin", room: int = MOST
) -> str:
    """The verdict, what failed and why, the gates, then `sections` (Markdown).

    At most `room` bytes of UTF-8: what does not fit is left out from a section's end on (of gates, a row's;
    the missed ones come first then), and a sentence says so. "" where there is hardly any room.
    """
    gates = [case for case in found if isinstance(case, GateResult)]
    failed = [case for case in found if isinstance(case, Ended) and case.error]
    said = "; ".join(filter(None, [*map(_in_a_word, failed), verdict(gates)]))
    if room < 4 * SPARE:
        return ""
    text = f"## {escape(title)}{': ' * bool(said)}{said}\n"
    first = [*map(_failure, failed)]
    left = room - 2 * SPARE - sum(_bytes(part) + 2 for part in [text, *first])
    sections = [*first, *_gates(gates, left), *sections]
    for place, section in enumerate(sections):
        block = f"\n{section.strip()}\n"
        if _bytes(text) + _bytes(block) > room - SPARE:
            count = len(sections) - place
            what = "1 section is" if count == 1 else f"{count} sections are"
            return f"{text}\n*{what} left out here: a step summary holds {_size(MOST)} at most.*\n"
        text += block
    return text


def _in_a_word(case: Ended) -> str:
    return f"step {escape(case.step)} " * bool(case.step) + escape(case.status)


def _failure(case: Ended) -> str:
    """The error as the log has it."""
    lines = [cut(text, LONGEST) for text in (case.message, *case.details)]
    left = [f"… and {len(lines) - DETAILS} more lines"] if len(lines) > DETAILS else []
    shown = fence("\n".join(lines[:DETAILS] + left), "text")
    return f"### {_in_a_word(case)} ({escape(case.error)})\n\n{shown}"


def _gates(found: Sequence[GateResult], room: int) -> list[str]:
    if not found:
        return []
    whole = table(found)
    told = [f"*{escape(text[0].upper() + text[1:])}.*" for text in baselines(found)]
    return [whole if _bytes(whole) <= room else _cut(found, room), *told]


def table(found: Sequence[GateResult]) -> str:
    """The gates as a Markdown table, a column for the step where there are steps."""
    return "\n".join(_lines(found))


def _lines(found: Sequence[GateResult]) -> list[str]:
    """Two rows of heads, then one a gate."""
    shown = barrier.gates(found).shown(On.SUMMARY)
    return [*markdown.heads(shown), *(markdown.row(shown, row) for row in shown.rows)]


def _cut(found: Sequence[GateResult], room: int) -> str:
    """As many rows as there is room for, those that are not met first."""
    ordered = sorted(found, key=lambda gate: gate.met)
    every = _lines(ordered)
    lines, rows = every[:2], every[2:]
    used = sum(_bytes(each) + 1 for each in lines) + SPARE
    for place, text in enumerate(rows):
        used += _bytes(text) + 1
        if used > room:
            missed = sum(not gate.met for gate in ordered[place:])
            left = f"{len(ordered) - place} gates ({missed} of them not met) are left out here"
            return "\n".join([*lines, "", f"*{left}: a step summary holds {_size(MOST)} at most.*"])
        lines.append(text)
    return "\n".join(lines)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _size(count: int) -> str:
    return f"{count >> 20} MiB"
