"""What gates found, and how steps ended, of one command or of several: what CI servers are told, as values.

`GateResult` is one gate held against one figure, `Ended` a step that is told by no gate. `formats.junit` and
`github` render any number of them, `raise_unmet` ends the program with exit code 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import GateNotMet
from ..runtime.text import clean
from . import Report

BASELINE = "--baseline"  # how gates against a baseline begin


@dataclass(frozen=True)
class GateResult:
    """A gate that was held against a figure, or that could not be: then it is not met.

    `name` is the gate as the user wrote it, `wanted` its bound in words ("at most 0.05 nats"), `measured`
    NaN where there was nothing to measure, `message` a whole sentence. `step` names the step of a recipe,
    `where` its line ("line 12"). `against` tells of a baseline which it is, and of when. One that is
    `skipped` passes, since there is no baseline yet and that was accepted.
    """

    name: str
    measured: float
    wanted: str
    met: bool
    message: str
    step: str = ""
    where: str = ""
    against: str = ""
    skipped: bool = False

    def __post_init__(self) -> None:
        if self.met and not (self.skipped or math.isfinite(self.measured)):
            raise ValueError(f"{self.name}: a gate on {self.measured} cannot be met")

    @property
    def told(self) -> str:
        """Step, gate and sentence on one line."""
        return clean(f"step {self.step}: " * bool(self.step) + f"{self.name}: {self.message}")


@dataclass(frozen=True)
class Ended:
    """A step, or a run as a whole, that no gate tells of; `name` is what was run, such as "rebasin merge".

    `error` is the class of the error that it ended with, "" where it was done, or not run (`skipped`).
    `message` is one line, `details` are what more there is to say: findings, the next command.
    """

    name: str
    message: str
    step: str = ""
    error: str = ""
    skipped: bool = False
    details: tuple[str, ...] = ()
    status: str = "failed"  # in a word, of an error

    @property
    def met(self) -> bool:
        return not (self.error or self.skipped)


Case = GateResult | Ended


def results(report: Report, step: str = "", *, where: str = "", baseline: str = "") -> list[GateResult]:
    """The gates of a barrier report; `baseline` tells which one it was held against.

    A baseline that is not there yet is one of them, where that was accepted.
    """
    found = [
        replace(each, against=baseline if each.name.startswith(BASELINE) else "")
        for each in of_values(map(asdict, report.gates), step, where=where)
    ]
    if report.baseline.get("missing") is True:
        name = clean(report.baseline.get("file", ""))
        told = f"{name} is not there yet, and that was accepted: nothing was held against a baseline"
        wanted = "a report to compare with"
        found.append(
            GateResult(f"{BASELINE} {name}", math.nan, wanted, True, told, step, where, skipped=True)
        )
    return found


def of_values(gates: Iterable[Mapping[str, Any]], step: str = "", *, where: str = "") -> list[GateResult]:
    """Gates as JSON has them, by the fields of `reports.Gate`."""
    return [
        GateResult(g["text"], float(g["measured"]), g["wanted"], g["met"], g["detail"], step, where)
        for g in gates
    ]


def verdict(found: Sequence[GateResult]) -> str:
    """How many gates hold, "" where there are none."""
    count, missed = sum(not gate.skipped for gate in found), sum(not gate.met for gate in found)
    many = "1 gate" if count == 1 else f"{missed} of {count} gates" if missed else f"all {count} gates"
    said = [f"{many} {'not met' if missed else 'met'}"] if count else []
    return ", ".join([*said, *["no baseline yet"] * (count < len(found))])


def mark(gate: GateResult) -> str:
    """Whether it is met, in a word."""
    return "– no baseline yet" if gate.skipped else "✓ met" if gate.met else "✗ not met"


def baselines(found: Iterable[GateResult]) -> list[str]:
    """Which baselines these gates were held against, a sentence each."""
    told = dict.fromkeys(gate.against for gate in found if gate.against)
    return [f"the baseline is {clean(text)}" for text in told]


def shouted(gate: GateResult) -> str:
    """The same, so that nobody passes over what is not met."""
    return mark(gate) if gate.met and not gate.skipped else mark(gate).upper()


def raise_unmet(found: Iterable[GateResult]) -> None:
    """Raise GateNotMet listing every gate that was missed: once everything has been written."""
    found = list(found)
    missed = [gate for gate in found if not gate.met]
    if missed:
        count = sum(not gate.skipped for gate in found)
        many = "1 gate" if count == 1 else f"{count} gates"
        error = GateNotMet(f"{len(missed)} of {many} not met", problems=[gate.told for gate in missed])
        error.gates = tuple(missed)
        error.closing = tuple(f"  {text}" for text in baselines(missed))
        raise error
