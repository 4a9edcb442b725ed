"""JUnit XML, one test case a gate, for the test tab of a CI server."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence

from ...runtime.text import clean
from .. import Report
from ..conclusion import conclude
from ..format import figures, headline, splits, title
from ..verdicts import Case, Ended, GateResult, baselines, results

FILENAME = "junit.xml"
HELP = "Write one JUnit case per gate."

CLASSNAME = "rebasin.barrier"


def render(report: Report) -> str:
    """A gate that is not met is a failure; without gates a single case says that it was measured."""
    said = "; ".join(filter(None, (headline(report), conclude(report))))
    return junit(
        results(report) or [Ended("measured", said)],
        name=title(report),
        classname=CLASSNAME,
        seconds={"": report.times.get("total", 0.0)},
        properties=_properties(report),
        remarks=(*report.notes, report.command),
    )


def _properties(report: Report) -> list[tuple[str, str]]:
    found = [
        ("rebasin", report.rebasin),
        ("command", report.command),
        ("seed", str(report.seed)),
        ("data", str(report.data.get("name", ""))),
        ("spec", str(report.spec.get("name", ""))),
        ("method", str(report.match.get("method", ""))),
        ("proof", str(report.proof.get("status", ""))),
        ("proof network", str(report.proof.get("network", ""))),
        ("shipped", next((row.name for row in report.rows if row.shipped), "")),
    ]
    metrics = [metric.key for metric in report.metrics]
    keys = ["loss", *metrics, "barrier_midpoint", "barrier_chord"]
    keys += [f"{key}_{which}" for key in metrics for which in ("midpoint", "chord")]
    for row in report.rows:
        for split in splits(report):
            values = zip(keys, figures(report, row, split), strict=True)
            found += [(f"{row.name}:{split}:{key}", value) for key, value in values if value != "—"]
    return found


RUN = "rebasin"


def junit(
    found: Iterable[Case],
    *,
    name: str = "rebasin",
    classname: str = RUN,
    seconds: Mapping[str, float] | None = None,
    properties: Iterable[tuple[str, str]] = (),
    remarks: Sequence[str] = (),
) -> str:
    """A suite for every step, in their order, and a case for every gate, and for every step without one.

    `name` is that of the suite without a step; `seconds` are by step. `properties` are put into every suite,
    `remarks` below the sentence of each failure.
    """
    steps: dict[str, list[Case]] = {}
    for case in found:
        steps.setdefault(case.step, []).append(case)
    every, took = [case for cases in steps.values() for case in cases], dict(seconds or {})
    total = _counts("rebasin", every, math.fsum(took.get(step, 0.0) for step in steps))
    del total["skipped"]  # an attribute of suites alone
    root = ET.Element("testsuites", total)
    for step, cases in steps.items():
        suite = ET.SubElement(root, "testsuite", _counts(step or name, cases, took.get(step, 0.0)))
        if listed := list(properties):
            inner = ET.SubElement(suite, "properties")
            for key, value in listed:
                ET.SubElement(inner, "property", name=clean(key), value=clean(value))
        for case in cases:
            of = clean(f"{classname}.{step}" if step else classname)
            _tell(
                ET.SubElement(suite, "testcase", classname=of, name=clean(case.name), time="0"), case, remarks
            )
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counts(name: str, cases: Sequence[Case], seconds: float) -> dict[str, str]:
    return {
        "name": clean(name),
        "tests": str(len(cases)),
        "failures": str(sum(isinstance(case, GateResult) and not case.met for case in cases)),
        "errors": str(sum(isinstance(case, Ended) and bool(case.error) for case in cases)),
        "skipped": str(sum(case.skipped for case in cases)),
        "time": f"{seconds:.3f}",
    }


def _tell(element: ET.Element, case: Case, remarks: Sequence[str]) -> None:
    """What became of a case; of one that is met or done its figures."""
    said = clean(case.message)
    if case.skipped:
        ET.SubElement(element, "skipped", message=said)
    elif case.met:
        ET.SubElement(element, "system-out").text = said
    elif isinstance(case, GateResult):
        found = ET.SubElement(element, "failure", message=said, type="GateNotMet")
        found.text = "\n".join([said, *baselines([case]), *map(clean, remarks)])
    else:
        found = ET.SubElement(element, "error", message=said, type=clean(case.error))
        found.text = "\n".join([said, *map(clean, case.details), *map(clean, remarks)])
