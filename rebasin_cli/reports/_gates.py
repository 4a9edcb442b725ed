"""What gates found, of one command or of several steps, as the files that a CI server reads.

`GateResult` is one gate held against one figure. `junit` and `summary` render any number of them,
`raise_unmet` ends the program with exit code 1; `_github` says the same to GitHub's own means.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import GateNotMet
from . import Gate, Report
from ._format import clean, number
from ._markup import escape, head, line

CLASSNAME = "rebasin"
MOST = 1 << 20  # bytes of a step summary: GitHub refuses more
SPARE = 512  # bytes, for the sentence that says what was left out


@dataclass(frozen=True)
class GateResult:
    """A gate that was held against a figure, or that could not be: then it is not met.

    `name` is the gate as the user wrote it, `wanted` its bound in words ("at most 0.05 nats"), `measured`
    NaN where there was nothing to measure, `message` a whole sentence. `step` names the step of a recipe.
    """

    name: str
    measured: float
    wanted: str
    met: bool
    message: str
    step: str = ""

    def __post_init__(self):
        if self.met and not math.isfinite(self.measured):
            raise ValueError(f"{self.name}: a gate on {self.measured} cannot be met")

    @property
    def told(self) -> str:
        """Step, gate and sentence on one line."""
        return clean(f"{self.step}: " * bool(self.step) + f"{self.name}: {self.message}")


def results(report: Report, step: str = "") -> list[GateResult]:
    """The gates of a barrier report."""
    return [
        GateResult(gate.text, gate.measured, gate.wanted, gate.met, gate.detail, step)
        for gate in report.gates
    ]


def verdict(found: Sequence[GateResult | Gate]) -> str:
    """How many gates hold, "" where there are none."""
    count, missed = len(found), sum(not gate.met for gate in found)
    if not count:
        return ""
    many = "1 gate" if count == 1 else f"{missed} of {count} gates" if missed else f"all {count} gates"
    return f"{many} {'not met' if missed else 'met'}"


def raise_unmet(found: Iterable[GateResult]) -> None:
    """Raise GateNotMet listing every gate that was missed: once everything has been written."""
    found = list(found)
    missed = [gate for gate in found if not gate.met]
    if missed:
        many = "1 gate" if len(found) == 1 else f"{len(found)} gates"
        error = GateNotMet(f"{len(missed)} of {many} not met", problems=[gate.told for gate in missed])
        error.gates = tuple(missed)
        raise error


def junit(
    found: Iterable[GateResult],
    *,
    name: str = "rebasin",
    classname: str = CLASSNAME,
    seconds: Mapping[str, float] | None = None,
    properties: Iterable[tuple[str, str]] = (),
    remarks: Sequence[str] = (),
) -> str:
    """JUnit XML: a suite for every step, in their order, and a case for every gate; what is missed fails.

    `name` is that of the suite without a step; `seconds` are by step. `properties` are put into every suite,
    `remarks` below the sentence of each failure.
    """
    steps: dict[str, list[GateResult]] = {}
    for gate in found:
        steps.setdefault(gate.step, []).append(gate)
    every, took = [gate for gates in steps.values() for gate in gates], dict(seconds or {})
    root = ET.Element("testsuites", _counts("rebasin", every, math.fsum(took.values())))
    for step, gates in steps.items():
        suite = ET.SubElement(root, "testsuite", _counts(step or name, gates, took.get(step, 0.0)))
        if listed := list(properties):
            inner = ET.SubElement(suite, "properties")
            for key, value in listed:
                ET.SubElement(inner, "property", name=clean(key), value=clean(value))
        for gate in gates:
            of = clean(f"{classname}.{step}" if step else classname)
            case = ET.SubElement(suite, "testcase", classname=of, name=clean(gate.name), time="0")
            if gate.met:
                ET.SubElement(case, "system-out").text = clean(gate.message)
            else:
                failure = ET.SubElement(case, "failure", message=clean(gate.message), type="GateNotMet")
                failure.text = "\n".join([clean(gate.message), *map(clean, remarks)])
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counts(name: str, gates: Sequence[GateResult], seconds: float) -> dict[str, str]:
    return {
        "name": clean(name),
        "tests": str(len(gates)),
        "failures": str(sum(not gate.met for gate in gates)),
        "errors": "0",
        "skipped": "0",
        "time": f"{seconds:.3f}",
    }


def table(found: Sequence[GateResult]) -> str:
    """The gates as a Markdown table, a column for the step where there are steps."""
    return "\n".join([*_head(found), *map(_row_of(found), found)])


def _head(found: Sequence[GateResult]) -> list[str]:
    columns = ["gate", "result", "measured", "wanted", "in words"]
    return head(["step"] * any(gate.step for gate in found) + columns)


def _row_of(found: Sequence[GateResult]) -> Callable[[GateResult], str]:
    stepped = any(gate.step for gate in found)

    def row(gate: GateResult) -> str:
        mark = "✓ met" if gate.met else "**✗ not met**"
        cells = [escape(gate.name), mark, number(gate.measured), escape(gate.wanted), escape(gate.message)]
        return line([escape(gate.step)] * stepped + cells)

    return row


def summary(
    found: Sequence[GateResult], sections: Sequence[str] = (), *, title: str = "rebasin", room: int = MOST
) -> str:
    """Markdown for the step summary of a CI run: the verdict, the gates, then `sections` (Markdown).

    At most `room` bytes of UTF-8: what does not fit is left out from a section's end on (of gates, a row's;
    the missed ones come first then), and a sentence says so. "" where there is hardly any room.
    """
    said = verdict(found)
    if room < 4 * SPARE:
        return ""
    text = f"## {escape(title)}{': ' * bool(said)}{said}\n"
    if found:
        whole = f"\n{table(found)}\n"
        text += whole if _bytes(text + whole) <= room - SPARE else _cut(found, room - SPARE - _bytes(text))
    for place, section in enumerate(sections):
        block = f"\n{section.strip()}\n"
        if _bytes(text) + _bytes(block) > room - SPARE:
            left = len(sections) - place
            what = "1 section is" if left == 1 else f"{left} sections are"
            return f"{text}\n*{what} left out here: a step summary holds {_size(MOST)} at most.*\n"
        text += block
    return text


def _cut(found: Sequence[GateResult], room: int) -> str:
    """As many rows as there is room for, those that are not met first."""
    lines, row, ordered = ["", *_head(found)], _row_of(found), sorted(found, key=lambda gate: gate.met)
    used = sum(_bytes(each) + 1 for each in lines) + SPARE
    for place, gate in enumerate(ordered):
        text = row(gate)
        used += _bytes(text) + 1
        if used > room:
            missed = sum(not gate.met for gate in ordered[place:])
            left = f"{len(ordered) - place} gates ({missed} of them not met) are left out here"
            return "\n".join([*lines, "", f"*{left}: a step summary holds {_size(MOST)} at most.*", ""])
        lines.append(text)
    return "\n".join([*lines, ""])


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _size(count: int) -> str:
    return f"{count >> 20} MiB"
