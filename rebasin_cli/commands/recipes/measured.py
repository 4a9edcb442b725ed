"""What a step has measured: its gates may be others the next time, and nothing is measured again.

A record (`measured/KEY.json`) holds the report as the step made it, whatever its gates said, under a key of
all that it depends on but its gates and baselines. So it is as good as measuring anew: gates are judged by
its figures whenever they are asked for, and never taken over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import RebasinError
from ...reports import Report
from ...reports.formats import json as json_format
from .cache import Cache
from .steps import Step

KIND = "measured"
REPORT = "rebasin.report/"  # how the schema of a barrier report begins
MEASURING = ("barrier",)  # commands that take what was measured before (`commands.verbs.measured`)


def find(key: str | None, cache: Cache) -> Report | None:
    """The report that a step of this `key` would measure; None where nobody knows."""
    kept = None if key is None else cache.record(KIND, key)
    if kept is None or kept["key"] != key:
        return None
    try:
        return report_of(kept["result"])
    except RebasinError:
        return None


def report_of(result: Mapping[str, Any]) -> Report | None:
    """The barrier report that a step left; None where it left something else."""
    return json_format.load(json.dumps(result)) if _is_report(result) else None


def _is_report(result: Mapping[str, Any]) -> bool:
    return str(result.get("schema", "")).startswith(REPORT)


def keep(step: Step, key: str | None, cache: Cache, result: Mapping[str, Any]) -> None:
    """Record what a step has measured."""
    if key is not None and _is_report(result):
        cache.put(KIND, key, {"key": key, "step": step.name, "result": dict(result)})


def key(step: Step, reads: Mapping[str, str], cache: Cache) -> str | None:
    """Of all that is measured, None where that is no report; `reads` are digests of what the step reads.

    Rows that gates name with a repair are measured, whatever a search chooses.
    """
    if step.command.name not in MEASURING:
        return None
    apart = {str(path) for path in step.judging}
    depends = {name: digest for name, digest in reads.items() if name not in apart}
    return cache.key(step.measuring(), depends, rows=_fixed_rows(step.options.get("gate") or ()))


def _fixed_rows(gates: Sequence[str]) -> list[str]:
    from ...measure.gates import fixed_rows  # heavy
    from ...measure.thresholds import parse_gate

    try:
        return fixed_rows(map(parse_gate, gates))
    except RebasinError:  # told by the step
        return list(gates)
