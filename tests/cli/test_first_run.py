"""A merging job from its first run on, with real commands: `missing: accept`, other gates, `promote`."""

import json
import xml.etree.ElementTree as ET

import pytest

RECIPE = """
inputs: {a: %s, b: %s}
output_dir: out
steps:
  - name: path
    barrier:
      models: [a, b]
      method: none
      repair: none
      limit: 60
      points: 3
      json_file: report.json
      max_barrier: 9
      baseline: {file: base.json, missing: accept}
junit: gates.xml
"""


@pytest.fixture
def job(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (tmp_path / "job.yaml").write_text(RECIPE % tuple(trained))
    (tmp_path / "promote.yaml").write_text(
        "steps: [{promote: {report: out/report.json, baseline: base.json}}]"
    )
    return tmp_path


def set_to(limit):
    return ("run", "job.yaml", "--set", f"steps.path.max_barrier={limit}")


def without_times(path):
    told = json.loads(path.read_text())
    return {key: value for key, value in told.items() if key != "times"}


def test_a_job_from_its_first_run_on_measures_once(job, done, run, monkeypatch):
    first = done("run", "job.yaml")
    assert "WARNING: no baseline: step path: --baseline base.json" in first.err
    assert "::warning file=job.yaml,line=5,title=rebasin%3A no baseline yet::" in first.err
    (suite,) = ET.parse(job / "out/gates.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["skipped"]) == ("2", "1")
    again = done("run", "job.yaml")
    assert "path: unchanged" in again.out and "WARNING: no baseline" in again.err  # each time
    fresh = done(*set_to(8), "--no-cache", "--json").json()["steps"][0]["result"]
    monkeypatch.setattr("rebasin_cli.measure.report.barrier", lambda *a, **k: pytest.fail("it was measured"))
    missed = run(*set_to(-1))
    assert missed.code == 1 and "nothing is measured again" in missed.err
    assert run(*set_to(-1)).code == 1
    assert not json.loads((job / "out/report.json").read_text())["gates"][0]["met"]
    assert len(list(ET.parse(job / "out/gates.xml").getroot().iter("failure"))) == 1
    refused = run("run", "promote.yaml")
    assert refused.code == 1 and not (job / "base.json").exists()
    done(*set_to(8))
    judged = without_times(job / "out/report.json")
    assert judged == {key: value for key, value in fresh.items() if key != "times"}  # as if measured anew
    done("run", "promote.yaml")
    assert (job / "base.json").read_bytes() == (job / "out/report.json").read_bytes()
    held = done(*set_to(8))
    assert "✓ met  --baseline chord" in held.out and "WARNING" not in held.err
    assert "promote: unchanged" not in done("run", "promote.yaml").out  # the report has its baseline now
    assert "promote: unchanged" in done("run", "promote.yaml").out
    assert run("run", "job.yaml", "--set", "steps.path.gate=[x:test:chord<=1]").code == 2
