"""What the action tells of a run: its documents are the run's, whatever its steps call theirs."""

import json
import subprocess
import sys

from .runner import ACTION


def test_a_file_of_a_step_takes_no_documents_place(tmp_path, monkeypatch):
    reports = tmp_path / "job" / "reports"
    reports.mkdir(parents=True)
    (tmp_path / "job" / "began").touch()
    monkeypatch.chdir(tmp_path)
    own = ("result.json", "junit.xml", "summary.md", "JUnit.xml", "out.json")
    for name in own:
        (tmp_path / name).write_text("a step's")
    steps = [{"status": "done", "outputs": dict.fromkeys(own, "digest")}]
    result = json.dumps({"exit_code": 1, "steps": steps, "written": []})
    (reports / "result.json").write_text(result)
    (reports / "junit.xml").write_text("the run's")
    line = [sys.executable, "-I", ACTION.with_name("told.py"), tmp_path / "job"]
    told = subprocess.run(line, env={"PLACE": "."}, check=True, capture_output=True, text=True).stdout
    assert (reports / "result.json").read_text() == result
    assert (reports / "junit.xml").read_text() == "the run's"
    assert {path.name for path in (reports / "steps").iterdir()} == {*own} - {"out.json"}
    assert (reports / "out.json").is_file()
    assert "summary=\n" in told and "exit-code=1" in told
