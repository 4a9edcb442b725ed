"""What the action tells of a run: its documents are the run's, whatever its steps call theirs."""

import json
import subprocess
import sys

from .runner import ACTION


def outputs(folder):
    line = [sys.executable, "-I", ACTION.with_name("told.py"), folder]
    return subprocess.run(line, env={"PLACE": "."}, check=True, capture_output=True, text=True).stdout


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
    told = outputs(tmp_path / "job")
    assert (reports / "result.json").read_text() == result
    assert (reports / "junit.xml").read_text() == "the run's"
    assert {path.name for path in (reports / "steps").iterdir()} == {*own} - {"out.json"}
    assert (reports / "out.json").is_file()
    assert "summary=\n" in told and "exit-code=1" in told


def test_what_a_run_wrote_is_told_where_it_ended_well_and_copied_without_its_weights(tmp_path, monkeypatch):
    folder, work = tmp_path / "job", tmp_path / "work"
    (folder / "reports").mkdir(parents=True)
    work.mkdir()
    (folder / "began").touch()
    monkeypatch.chdir(work)
    names = [
        "a.json",
        "m.safetensors",
        "two\nlines.json",
        "../away.json",
        str(folder / "reports" / "junit.xml"),
    ]
    for name in names:
        (work / name).write_text("made")
    (work / "link.json").symlink_to(tmp_path / "away.json")
    written = [*names, "link.json", "gone.json", 3]
    for code, status in ((0, "done"), (1, "gate not met"), (0, "unchanged")):
        run = {"exit_code": code, "steps": [{"status": status}], "written": written}
        (folder / "reports" / "result.json").write_text(json.dumps(run))
        told = outputs(folder)
        listed = told.split("files<<", 1)[1].splitlines()[1:-1]
        assert listed == (
            ["./a.json", "./m.safetensors", "./../away.json", "./link.json"] if not code else []
        )
        assert f"changed={'false' if status == 'unchanged' else 'true'}\n" in told
    copied = {path.name for path in (folder / "reports").iterdir()}
    assert copied == {"a.json", "away.json", "junit.xml", "result.json"}
    assert (folder / "reports" / "junit.xml").read_text() == "made"


def test_a_run_without_a_result_is_told_as_one_that_was_killed_if_it_began(tmp_path):
    for text in (None, "", "[1]", '{"exit_code"'):
        for began in (False, True):
            folder = tmp_path / f"{text and len(text)}-{began}"
            (folder / "reports").mkdir(parents=True)
            if text is not None:
                (folder / "reports" / "result.json").write_text(text)
            if began:
                (folder / "began").touch()
            told = outputs(folder)
            assert f"changed={'true' if began else 'false'}\nexit-code=\n" in told
            assert ("result=\n" in told) is (not text)
            assert (folder / "reports" / "junit.xml").is_file() is began
            assert (f"junit={folder}" in told) is (f"summary={folder}" in told) is began
