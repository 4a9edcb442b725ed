"""What Jenkins' schema of JUnit files asks for (junit-10.xsd of its xUnit plugin), and counts that add up."""

import re
import xml.etree.ElementTree as ET

INSIDE = {
    "testsuites": {"testsuite"},
    "testsuite": {"testsuite", "properties", "testcase", "system-out", "system-err"},
    "properties": {"property"},
    "testcase": {"skipped", "error", "failure", "system-out", "system-err"},
}
COUNTS = ("tests", "failures", "errors", "skipped")
OF_A_SUITE = {
    *COUNTS,
    "name",
    "time",
    "group",
    "timestamp",
    "hostname",
    "id",
    "package",
    "file",
    "log",
    "url",
}
MAY = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": OF_A_SUITE,
    "testcase": {"name", "time", "classname", "group"},
    "property": {"name", "value"},
} | dict.fromkeys(("skipped", "error", "failure"), {"type", "message"})
MUST = {
    "testsuite": {"name", "tests", "failures", "errors"},
    "testcase": {"name", "classname"},
    "property": {"name", "value"},
} | dict.fromkeys(("error", "failure"), {"type", "message"})  # without these servers show less
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")


def problems(text):
    """What is not valid, a line each."""
    return [*_problems(ET.fromstring(text))]


def _problems(element):
    tag, has = element.tag, set(element.attrib)
    yield from (f"{tag} has {name}" for name in has - MAY.get(tag, set()))
    yield from (f"{tag} lacks {name}" for name in MUST.get(tag, set()) - has)
    yield from (f"{inner.tag} in {tag}" for inner in element if inner.tag not in INSIDE.get(tag, set()))
    if tag.startswith("testsuite"):
        if not TIME.fullmatch(element.get("time", "")):
            yield f"{tag} took {element.get('time')}"
        cases = list(element.iter("testcase"))
        true = {"tests": len(cases)}
        for word, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            true[count] = sum(case.find(word) is not None for case in cases)
        yield from (
            f"{tag} {element.get('name')}: {name} is {element.get(name)}, and there are {true[name]}"
            for name in COUNTS
            if name in has and element.get(name) != str(true[name])
        )
    if tag == "testcase" and len({inner.tag for inner in element} & {"skipped", "error", "failure"}) > 1:
        yield f"{element.get('name')} ended in several ways"
    for inner in element:
        yield from _problems(inner)
