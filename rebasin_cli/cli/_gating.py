"""The options that ask for gates, as what is asked; and how a command ends that has judged them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runtime.text import line


def gates_of(options: Mapping[str, Any]) -> Any:
    """The options about gates as a `measure.gates.Asked`. Raises UsageError before anything is measured."""
    from ..commands.verbs import gates as gating
    from ..measure import gates

    limits = {
        name: options[name]
        for name in ("max_barrier", "min_accuracy", "max_accuracy_drop", "baseline_tolerance")
    }
    named = tuple(gates.parse_gate(text) for text in options["gate"] or ())
    baseline = gating.baseline(options["baseline"], options["missing_baseline"])
    return gates.Asked(gates=named, baseline=baseline, **limits)


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
        for text in _github.warnings(found, recipe and str(recipe)):
            print(text, file=sys.stderr, flush=True)
