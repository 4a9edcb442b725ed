"""Every way to end: what a job leaves is this job's, in its place, and the page says so.

A case is a process or two, so all of them are sweeps; `make test` plays the workflows with a stub, in
`test_servers.py`.
"""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from . import cases, junit, page
from .cases import CASES

ENDS = {0: "done", 1: "gate not met", 6: "failed", 124: "timed out", 130: "interrupted", 143: "interrupted"}


def check(case, job, before=()):
    """What holds of every end, whatever it was."""
    merge, told = job.workspace / "merge", job.outputs
    code = int(cases.code(job))
    assert (job.status == "success") == (code == 0)
    assert told["exit-code"] in (str(code), "")
    result = json.loads(Path(told["result"]).read_text()) if told["result"] else None
    if result is not None:
        assert result["exit_code"] == code
        assert Path(told["result"]).stat().st_mtime >= before[0] if before else True
    if told["junit"]:
        found = junit.counts(Path(told["junit"]))
        assert (found["failures"] + found["errors"] == 0) == (code == 0)
        assert found["failures"] == 0 or code == 1
    # Weights stand where they may be taken from with 0 alone, with their card and their statement.
    out = merge / "out"
    passed = {path.name for path in out.glob("*.safetensors")} - {"aligned.perm.safetensors"}
    complete = {"merged.intoto.json", "README.md"} <= {path.name for path in out.glob("*")}
    if code == 0:
        assert "merged.safetensors" in passed and complete
        assert "merge/out/merged.safetensors" in told["files"].splitlines()
        assert set(job.server.artifacts) == {"merged", "reports"}
    else:
        assert not told["files"] and "merged" not in job.server.artifacts
        assert not (out / "merged.intoto.json").exists() or code == 137 or result is None
    if code not in (0, 137) and result is not None:
        assert not passed, f"weights that were not passed lie in out/: {passed}"
    for names in (path.name for path in merge.rglob("*")):
        assert not names.startswith(".rebasin-"), "a temporary file is left"


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
def test_what_a_job_leaves_is_its_own(case, passed, repository, rebasin, tmp_path):
    job = cases.play(case, tmp_path, repository, passed.server, rebasin)
    check(case, job)
    page.check(case, job)


@pytest.mark.sweep
def test_the_first_run_passes_and_says_so(passed):
    check(CASES[0], passed)
    page.check(CASES[0], passed)


def test_the_page_has_a_row_for_every_case():
    assert list(page.rows()) == [case.name for case in CASES]


def test_what_is_no_junit_is_noticed(tmp_path):
    """The checker checks: element, attribute, count."""
    path = tmp_path / "junit.xml"
    counts = 'tests="2" failures="1" errors="0" skipped="1"'
    failed = '<testcase name="a" classname="c"><failure type="t" message="m"/></testcase>'
    skipped = '<testcase name="b" classname="c"><skipped/></testcase>'
    good = f'<testsuites><testsuite name="s" {counts}>{failed}{skipped}</testsuite></testsuites>'
    path.write_text(good)
    assert junit.told(str(path)) == "1 failed, 1 skipped"
    for old, new in (
        ("<skipped/>", ""),
        ("<skipped/>", "<skipped/><error type='t' message='m'/>"),
        ("failure", "failed"),
        (' classname="c"', ""),
        ('message="m"', ""),
        ('errors="0"', 'errors="1"'),
        ("<testsuites", "<testsuite"),
    ):
        path.write_text(good.replace(old, new))
        with pytest.raises((AssertionError, ET.ParseError)):
            junit.counts(path)
