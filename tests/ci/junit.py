"""What a JUnit file says, of one that servers accept."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from ..reports.junit_schema import problems

COUNTED = ("failures", "errors", "skipped")
ENDS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def counts(path: Path) -> dict[str, int]:
    """How many tests, failures, errors and skipped a file has; an AssertionError says what is not valid."""
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert root.tag == "testsuites"
    assert problems(text) == []
    return _counted(root)


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
