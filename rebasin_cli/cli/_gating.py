"""The options that ask for gates, as what is asked; and how a command ends that has judged them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..runtime.text import line


def gates_of(options: Mapping[str, Any]) -> Any:
    """The options about gates as a `measure.gates.Asked`. Raises UsageError before anything is measured."""
    from ..commands.verbs import gates as gating
    from ..measure import gates, thresholds

    named = thresholds.asked(options["gate"] or (), max_barrier=options["max_barrier"])
    baseline = gating.baseline(options["baseline"], options["missing_baseline"])
    return gates.Asked(named, baseline, options["baseline_tolerance"])


def refuse_gone(arguments: Sequence[str]) -> None:
    """Raise UsageError with the line to type for limits that had options of their own, and are gates now."""
    if arguments[:1] not in (["barrier"], ["gate"]):
        return
    from ..measure import thresholds

    told: list[str] = []
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        given = value if equals else after * (not after.startswith("--"))
        told += filter(None, [thresholds.gone(flag, given)])
    if told:
        raise UsageError("; ".join(told))


def end(report: Any, baseline: Path | None) -> None:
    """Warn of a baseline that is not there yet. Raises GateNotMet for gates that were missed."""
    from ..commands.verbs import since
    from ..reports import _gates
    from ..reports._as_one import told_as_one

    found = _gates.results(report, baseline=since.of_missed(report, baseline))
    if not told_as_one():  # else the run does
        warn(found)
    _gates.raise_unmet(found)


def warn(found: Sequence[Any], recipe: Path | None = None) -> None:
    """Say of gates without a baseline on stderr that nothing was compared, and to GitHub as it reads it."""
    from ..reports import _github

    for gate in found:
        if gate.skipped:
            print(line(f"WARNING: no baseline: {gate.told}"), file=sys.stderr)
    if _github.running():
        for text in _github.warnings(found, None if recipe is None else str(recipe)):
            print(text, file=sys.stderr, flush=True)
