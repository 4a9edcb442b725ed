"""rebasin gate and rebasin promote: stored reports, a first run, the next baseline."""

import dataclasses
import json
import os
import re
import xml.etree.ElementTree as ET

import pytest

from rebasin_cli.measure import gates
from rebasin_cli.measure.thresholds import of_option
from rebasin_cli.reports import Curve, Report, Row, barrier_of
from rebasin_cli.reports.formats import json as json_format

from .conftest import contents

DATA = {"name": "digits", "normalization": "0/1", "samples": {"test": 400}, "sha256": "f6"}
ENDS = tuple({"name": name, "test": {"loss": 0.3, "accuracy": 0.93}} for name in "AB")


def report(*, loss=0.32, accuracy=0.915, data=DATA, command="rebasin barrier a.pt b.pt", **limits):
    """A report of three points, held against limits that are options, or were such in earlier versions."""
    curve = Curve((0.0, 0.5, 1.0), (0.3, loss, 0.3), {"accuracy": (0.93, accuracy, 0.93)}, 400)
    row = Row("aligned", {"test": curve}, {"test": barrier_of(curve)}, shipped=True)
    spec = {"name": "mlp", "sha256": "c3", "log10_symmetries": 12.5}
    made = Report("0", command, 0, (), spec, data, {}, {}, ENDS, (row,))
    return gates.judged(made, gates.GateSet(tuple(of_option(*limit) for limit in limits.items())))


def stored(path, made):
    path.write_text(json_format.render(made))
    return path


@pytest.fixture
def passed(tmp_path):
    return stored(tmp_path / "report.json", report(max_barrier=0.05))


def loaded(path):
    return json_format.load(path.read_text())


# rebasin gate


def test_a_stored_report_is_held_against_gates_by_what_it_says_alone(passed, run, done, tmp_path):
    before = passed.read_bytes()
    outcome = done(
        "gate", passed, "--max-barrier", 0.021, "--gate", "accuracy >= 90%", "--json-file", "g.json"
    )
    assert "✓ met  --max-barrier 0.021" in outcome.out and "▸ aligned: test loss 0.3200" in outcome.out
    made = loaded(tmp_path / "g.json")
    assert [gate.text for gate in made.gates] == ["--max-barrier 0.021", "accuracy >= 90%"]
    assert made.command == "rebasin barrier a.pt b.pt" and "rebasin gate" in made.notes[-1]
    missed = run("gate", passed, "--gate", "shipped:test:loss<=0.1", "--junit", "j.xml", "--json")
    assert missed.code == 1 and "1 of 1 gate not met" in missed.err and not missed.json()["gates"][0]["met"]
    assert len(list(ET.parse(tmp_path / "j.xml").getroot().iter("failure"))) == 1
    done("gate", "g.json", "--max-barrier", 1, "--json-file", "h.json")
    again = loaded(tmp_path / "h.json")
    assert len(again.gates) == len(again.notes) == 1 and passed.read_bytes() == before


def test_a_stored_report_is_held_against_a_baseline_as_a_new_one_is(passed, run, done, tmp_path):
    stored(tmp_path / "better.json", report(loss=0.301))
    same = done("gate", passed, "--baseline", passed.name, "--json").json()
    assert [gate["met"] for gate in same["gates"]] == [True, True] and set(same["baseline"]) == {
        "file",
        "sha256",
    }
    missed = run("gate", passed, "--baseline", "better.json")
    assert missed.code == 1 and "0.019 worse than the baseline's 0.001" in missed.err
    assert "the baseline is better.json, sha256 " in missed.err


def test_a_gate_that_needs_a_new_measurement_says_which(passed, refused):
    said = ["unknown row 'aligned + reset'", "needs a new measurement: rebasin barrier a.pt b.pt"]
    refused(2, "gate", passed, "--gate", "aligned + reset:test:chord<=1", says=said)
    refused(2, "gate", passed, "--gate", "aligned:train:chord<=1", says="unknown split 'train'")
    refused(2, "gate", passed, "--gate", "aligned train loss <= 1", says="unknown split 'train'")
    refused(2, "gate", passed, says="no gate is named")
    refused(
        2, "gate", passed, "--max-barrier", 1, "--json-file", passed, "--force", says="is read by this very"
    )


@pytest.mark.parametrize("command", ["gate", "promote"])
def test_what_is_no_report_is_refused_in_one_message(command, refused, tmp_path, passed):
    stored(passed, report(max_accuracy_drop=0.5))
    more = ("--gate", "accuracy drop <= 1") if command == "gate" else ("new.json",)
    odd = {
        "cut.json": passed.read_bytes()[:500],
        "bytes.json": b"\xff\xfe\x00",
        "other.json": b'{"schema": "rebasin.compare/1"}',
        "later.json": b'{"schema": "rebasin.report/99"}',
        "met.json": re.sub(rb'"measured": [^,]*', b'"measured": "nan"', passed.read_bytes()),
        "ends.json": passed.read_bytes().replace(b'"accuracy": 0.93', b'"accuracy": "high"'),
        "kind.json": passed.read_bytes().replace(b'"baseline": {}', b'"baseline": 3'),
    }
    for name, content in odd.items():
        (tmp_path / name).write_bytes(content)
        refused(3, command, name, *more, says=name)
    refused(2, command, "none.json", *more, says="none.json: no such file")
    os.mkfifo(tmp_path / "pipe.json")
    refused(3, command, "pipe.json", *more, says="no regular file")


def edited(path, **fields):
    """The report in a file, its only row (or itself) with other fields."""
    made = loaded(path)
    rows = fields.pop("rows", None)
    changed = dataclasses.replace(made.rows[0], **{k: v for k, v in fields.items() if k != "gates"})
    more = {"gates": fields["gates"]} if "gates" in fields else {}
    return dataclasses.replace(made, rows=rows or (changed,), **more)


def test_a_report_that_contradicts_itself_is_refused(passed, refused, tmp_path):
    (row,) = loaded(passed).rows
    low = {"test": dataclasses.replace(row.barriers["test"], chord=0.0)}
    lost = {"test": dataclasses.replace(row.curves["test"], loss=(0.3, float("nan"), 0.3))}
    better = dataclasses.replace(row, name="better", barriers=low)
    odd = {
        "its barriers are not those of its curve": edited(passed, barriers=low),
        "aligned, test: its barriers": edited(passed, curves=lost),
        "2 rows would be shipped: better, aligned": edited(passed, rows=(better, row)),
        "two rows are called 'aligned'": edited(passed, rows=(row, dataclasses.replace(row, shipped=False))),
    }
    for said, made in odd.items():
        stored(tmp_path / "odd.json", made)
        refused(3, "gate", "odd.json", "--max-barrier", 0.05, says=said)
        refused(3, "promote", "odd.json", "new.json", says=said)
        refused(2, "gate", passed, "--baseline", "odd.json", says=said)
    (gate,) = loaded(passed).gates
    stored(tmp_path / "odd.json", edited(passed, gates=(dataclasses.replace(gate, limit=9.0),)))
    refused(3, "promote", "odd.json", "new.json", says="--max-barrier 0.05: it was held against 9")


def test_the_command_that_a_report_names_is_quoted_or_not_told(run, tmp_path):
    """A report may be a stranger's, and a command is there to be pasted."""
    for named, told in (("rebasin barrier a; rm -rf x", "rebasin barrier 'a;' rm -rf x"), ("rm -rf x", "")):
        stored(tmp_path / "r.json", report(command=named))
        said = run("gate", "r.json", "--gate", "naive:test:chord<=1").err
        assert told in said and named not in said


# a first run


def test_a_baseline_that_is_not_there_passes_loudly_where_that_was_accepted(
    passed, done, run, tmp_path, monkeypatch
):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    first = ("--baseline", "base.json", "--missing-baseline", "accept")
    outcome = done(
        *("gate", passed, *first, "--max-barrier", 0.05, "--junit", "j.xml", "--step-summary", "s.md", "-q"),
        *("--html", "r.html", "--markdown", "r.md", "--json-file", "g.json"),
    )
    assert "WARNING: no baseline: --baseline base.json" in outcome.err
    assert "::warning title=rebasin%3A no baseline yet::" in outcome.err
    assert "– NO BASELINE YET" in outcome.out and "✓ met  --max-barrier" in outcome.out
    (suite,) = ET.parse(tmp_path / "j.xml").getroot()
    assert suite.attrib["tests"] == "2" and suite.attrib["skipped"] == "1" and suite.attrib["failures"] == "0"
    assert "is not there yet" in suite.find("testcase/skipped").attrib["message"]
    for name in ("s.md", "r.md", "r.html"):
        assert "1 gate met, no baseline yet" in (tmp_path / name).read_text(), name
    assert loaded(tmp_path / "g.json").baseline == {"file": "base.json", "missing": True}
    missed = run("gate", passed, *first, "--max-barrier", 0.001)
    assert missed.code == 1 and "1 of 1 gate not met" in missed.err


def test_only_a_file_that_is_not_there_is_missing(passed, refused, tmp_path):
    line = ("gate", passed, "--missing-baseline", "accept")
    (tmp_path / "cut.json").write_bytes(passed.read_bytes()[:99])
    refused(2, *line, "--baseline", "cut.json", says="--baseline cut.json: not a JSON report")
    os.symlink("nowhere.json", tmp_path / "link.json")
    refused(2, *line, "--baseline", "link.json", says="--baseline link.json: no such file")
    refused(2, *line, "--baseline", f"{passed}/base.json", says="cannot be read")
    stored(tmp_path / "other.json", report(data={**DATA, "name": "mnist"}))
    refused(2, *line, "--baseline", "other.json", says="the data set: mnist there, digits here")
    refused(2, *line, says="no baseline is named")
    refused(2, *line[:-1], "maybe", "--baseline", "x", says="refuse or accept, not 'maybe'")
    said = ["reprt.json: no such file; did you mean report.json?", "--missing-baseline accept"]
    refused(2, "gate", passed, "--baseline", "reprt.json", says=said)


def test_a_baseline_that_is_not_there_is_no_place_to_write_to(passed, refused):
    line = (
        "gate",
        passed,
        "--baseline",
        "base.json",
        "--missing-baseline",
        "accept",
        "--json-file",
        "base.json",
    )
    refused(2, *line, says="base.json")


# rebasin promote


def test_a_report_whose_gates_were_met_becomes_the_baseline_byte_by_byte(passed, done, tmp_path):
    told = done("promote", passed, "kept/base.json", "--json").json()
    assert (tmp_path / "kept/base.json").read_bytes() == passed.read_bytes()
    assert told["replaced"] is None and told["held_against"] == "no baseline"
    done("gate", passed, "--baseline", "kept/base.json", "--json-file", "next.json", "--max-barrier", 0.04)
    told = done("promote", "next.json", "kept/base.json", "--json").json()
    assert told["held_against"] == "the baseline that it replaces" and told["replaced"]
    assert done("promote", "next.json", "kept/base.json", "--json").json()["replaced"] is None
    assert done("promote", passed, "kept/base.json", "--json").json()["held_against"] == "no baseline"


def test_a_first_run_whose_only_gate_had_no_baseline_may_be_promoted(passed, done):
    first = ("--baseline", "base.json", "--missing-baseline", "accept")
    done("gate", passed, *first, "--json-file", "g.json")
    assert done("promote", "g.json", "base.json", "--json").json()["gates"] == "no baseline yet"


def test_a_step_that_promotes_a_report_is_told_as_done(passed, done, tmp_path):
    steps = "steps: [{promote: {report: report.json, baseline: base.json}}]"
    (tmp_path / "recipe.yaml").write_text(f"rebasin: 1\n{steps}\n")
    assert "promote: done" in done("run", "recipe.yaml", "--junit", "told.xml").out
    assert 'failures="0"' in (tmp_path / "told.xml").read_text()


def test_nothing_but_a_report_that_passed_is_promoted(passed, run, refused, done, tmp_path):
    stored(tmp_path / "missed.json", report(max_barrier=0.01, min_accuracy=0.5))
    before = contents(tmp_path)
    outcome = run("promote", "missed.json", "base.json")
    assert outcome.code == 1 and "missed.json is no baseline: 1 of 2 gates not met" in outcome.err
    assert contents(tmp_path) == before
    told = json.loads((tmp_path / "missed.json").read_text())
    told["gates"][0]["met"] = True
    (tmp_path / "edited.json").write_text(json.dumps(told))
    said = ["says of its gates what its figures do not", "--max-barrier 0.01: it says met"]
    refused(3, "promote", "edited.json", "base.json", says=said)
    stored(tmp_path / "ungated.json", report())
    refused(2, "promote", "ungated.json", "base.json", says=["held against no gate", "--ungated"])
    done("promote", "ungated.json", "a.json", "--ungated")
    for name, made in {
        "told.json": report(max_barrier=1, data=DATA | {"checks": "skipped"}),
        "old.json": report(max_barrier=1, command="rebasin barrier a.pt b.pt --skip-checks"),
    }.items():
        stored(tmp_path / name, made)
        refused(2, "promote", name, "base.json", says="was measured with --skip-checks")
        done("promote", name, f"b-{name}", "--skip-checks")
    bare = report(max_barrier=1)
    bare = dataclasses.replace(bare, rows=(dataclasses.replace(bare.rows[0], shipped=False),), gates=())
    stored(tmp_path / "bare.json", bare)
    refused(2, "promote", "bare.json", "base.json", "--ungated", says="no row that would be shipped")


def test_a_report_of_limits_that_are_options_no_more_is_judged_as_ever(run, done, refused, tmp_path):
    stored(tmp_path / "old.json", report(max_accuracy_drop=0.015, min_accuracy=0.9))
    assert done("promote", "old.json", "base.json", "--json").json()["gates"] == "all 2 gates met"
    told = json.loads((tmp_path / "old.json").read_text())
    told["gates"][0] |= {"met": False, "text": "--max-accuracy-drop 0.01", "limit": 0.01}
    (tmp_path / "missed.json").write_text(json.dumps(told))
    outcome = run("promote", "missed.json", "other.json")
    assert outcome.code == 1 and "--max-accuracy-drop 0.01: " in outcome.err
    told["gates"][0]["met"] = True
    (tmp_path / "edited.json").write_text(json.dumps(told))
    refused(3, "promote", "edited.json", "other.json", says="--max-accuracy-drop 0.01: it says met")
    missed = run("gate", "old.json", "--gate", "accuracy drop <= 1%", "--gate", "test barrier <= 1", "-q")
    assert missed.code == 1 and "the fall of accuracy at λ=½ below the mean of the endpoints" in missed.err
    both = ("--min-accuracy", 0.9, "--max-accuracy-drop=0.01")
    said = ["--gate 'test accuracy >= 0.9'", "--gate 'test accuracy drop <= 0.01'"]
    refused(2, "gate", "old.json", *both, says=said)


def test_nothing_but_a_report_of_the_same_subject_is_replaced(passed, refused, tmp_path):
    (tmp_path / "notes.md").write_text("mine")
    refused(2, "promote", passed, "notes.md", says=["not a JSON report", "a report alone"])
    stored(tmp_path / "other.json", report(data={**DATA, "name": "mnist"}))
    refused(2, "promote", passed, "other.json", says=["something else", "the data set: mnist there"])
    refused(2, "promote", passed, passed, says="is read by this very command")
    os.symlink("report.json", tmp_path / "link.json")
    refused(2, "promote", passed, "link.json", says="would be replaced")
    os.link(passed, tmp_path / "hard.json")
    refused(2, "promote", passed, "hard.json", says="would be replaced")
    os.symlink("nowhere.json", tmp_path / "away.json")
    refused(2, "promote", passed, "away.json", says="is a link")
    refused(2, "promote", passed, "new.safetensors", says="would be taken for weights")
    (tmp_path / "folder").mkdir()
    refused(2, "promote", passed, "folder", says="is a folder")


def test_a_command_line_that_would_be_cut_is_not_told():
    from rebasin_cli.cli.run import at_home

    told = at_home(["rebasin", "run", "it's.yaml"], {}, {})
    assert told == """See it at home: rebasin run 'it'"'"'s.yaml'"""
    assert "too long to be told" in at_home(["rebasin", "run", "'" * 4000 + "$(x)"], {}, {})


def test_what_is_named_in_place_of_a_report_is_told_with_what_would_be_one(run, tmp_path):
    (tmp_path / "report.json").write_text(json_format.render(report()))
    (tmp_path / "weights.pt").write_bytes(b"PK\x03\x04\xff")
    near = run("gate", "reprot.json", "--max-barrier", "1")
    assert near.code == 2 and "reprot.json: no such file; did you mean report.json?" in near.err
    for line in (("gate", "weights.pt", "--max-barrier", "1"), ("promote", "weights.pt", "base.json")):
        other = run(*line)
        assert (
            other.code == 3 and "weights.pt: not a JSON report: it is not UTF-8\nWrite one with:" in other.err
        )
