"""JUnit XML, one test case a gate, for the test tab of a CI server."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from . import Report
from ._conclusion import conclude
from ._format import clean, figures, headline, splits, title

FILENAME = "junit.xml"
HELP = "Write one JUnit case per gate."

CLASSNAME = "rebasin.barrier"
KEYS = ("loss", "accuracy", "barrier_midpoint", "barrier_chord", "accuracy_midpoint", "accuracy_chord")


def render(report: Report) -> str:
    """A gate that is not met is a failure; without gates a single case says that it was measured."""
    missed = sum(not gate.met for gate in report.gates)
    counts = {
        "name": "rebasin",
        "tests": str(len(report.gates) or 1),
        "failures": str(missed),
        "errors": "0",
        "skipped": "0",
        "time": f"{report.seconds:.3f}",
    }
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {**counts, "name": clean(title(report))})
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report):
        ET.SubElement(properties, "property", name=clean(name), value=clean(value))
    for gate in report.gates:
        case = ET.SubElement(suite, "testcase", classname=CLASSNAME, name=clean(gate.text), time="0")
        if gate.met:
            ET.SubElement(case, "system-out").text = clean(gate.detail)
        else:
            failure = ET.SubElement(case, "failure", message=clean(gate.detail), type="GateNotMet")
            failure.text = "\n".join([clean(gate.detail), *map(clean, report.notes), clean(report.command)])
    if not report.gates:
        case = ET.SubElement(suite, "testcase", classname=CLASSNAME, name="measured", time=counts["time"])
        ET.SubElement(case, "system-out").text = "\n".join(filter(None, (headline(report), conclude(report))))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


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
    for row in report.rows:
        for split in splits(report):
            values = zip(KEYS, figures(row, split), strict=True)
            found += [(f"{row.name}:{split}:{key}", value) for key, value in values if value != "—"]
    return found
