"""What servers accept as JUnit: elements in their places, their attributes, counts that are true."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

COUNTED = ("failures", "errors", "skipped")
INSIDE = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase", "system-out", "system-err"},
    "properties": {"property"},
    "testcase": {"properties", "skipped", "error", "failure", "system-out", "system-err"},
}
NEEDED = {
    "testsuite": {"name", "tests", *COUNTED},
    "testcase": {"name", "classname"},
    "property": {"name", "value"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
}
ENDS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def counts(path: Path) -> dict[str, int]:
    """How many tests, failures, errors and skipped a file has; an AssertionError says what is not valid."""
    root = ET.parse(path).getroot()
    assert root.tag == "testsuites"
    _check(root)
    for suite in [root, *root.iter("testsuite")]:
        said = {name: int(suite.get(name, count)) for name, count in _counted(suite).items()}
        assert _counted(suite) == said, f"{suite.get('name')}: counts are not those of its cases"
    return _counted(root)


def _check(element: ET.Element) -> None:
    assert NEEDED.get(element.tag, set()) <= element.attrib.keys(), f"{element.tag} lacks an attribute"
    for inner in element:
        assert inner.tag in INSIDE.get(element.tag, set()), f"{inner.tag} in {element.tag}"
        _check(inner)
    ended = [inner.tag for inner in element if inner.tag in ENDS]
    assert len(ended) <= 1, f"{element.get('name')} ends in {len(ended)} ways"


def _counted(element: ET.Element) -> dict[str, int]:
    cases = list(element.iter("testcase"))
    found = {"tests": len(cases)} | dict.fromkeys(COUNTED, 0)
    for case in cases:
        for inner in case:
            if inner.tag in ENDS:
                found[ENDS[inner.tag]] += 1
    return found


def told(path: str) -> str:
    """The same in words; "none" where there is no file."""
    if not path:
        return "none"
    found = counts(Path(path))
    passed = found["tests"] - sum(found[name] for name in COUNTED)
    words = {"passed": passed, "failed": found["failures"], "in error": found["errors"]}
    words |= {"skipped": found["skipped"]}
    return ", ".join(f"{count} {word}" for word, count in words.items() if count)
