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
    with monkeypatch.context() as patch:
        patch.setattr("rebasin_cli.measure.report.barrier", lambda *a, **k: pytest.fail("it was measured"))
        missed = run(*set_to(-1))
        assert missed.code == 1 and "nothing is measured again" in missed.err
        assert run(*set_to(-1)).code == 1
        assert not json.loads((job / "out/report.json").read_text())["gates"][0]["met"]
        assert len(list(ET.parse(job / "out/gates.xml").getroot().iter("failure"))) == 1
        assert run("run", "promote.yaml").code == 1 and not (job / "base.json").exists()
        done(*set_to(8))
        judged = without_times(job / "out/report.json")
    done(*set_to(8), "--no-cache")
    assert judged == without_times(job / "out/report.json")  # as if it was measured anew


def test_what_has_passed_is_promoted_by_a_recipe_of_its_own(job, done, run):
    report, base = job / "out/report.json", job / "base.json"
    done("run", "job.yaml")
    done("run", "promote.yaml")
    assert base.read_bytes() == report.read_bytes()
    held = done("run", "job.yaml")
    assert "✓ met  --baseline chord" in held.out and "WARNING" not in held.err
    base.write_bytes(base.read_bytes() + b"\n")  # as somebody has committed it
    assert "promote: done" in done("run", "promote.yaml").out
    assert base.read_bytes() == report.read_bytes()
    assert "promote: unchanged" in done("run", "promote.yaml").out
    base.write_text("mine")
    refused = run("run", "promote.yaml")
    assert refused.code == 2 and "not a JSON report" in refused.err and base.read_text() == "mine"
    assert run("run", "job.yaml", "--set", "steps.path.gate=[x:test:chord<=1]").code == 2
