"""Gates of several steps as JUnit, as a step summary and as annotations."""

import math
import xml.etree.ElementTree as ET

import pytest

from rebasin_cli.errors import CheckpointError, DataError, GateNotMet, ResourceError, UsageError
from rebasin_cli.reports import Flips, github
from rebasin_cli.reports.formats.junit import junit
from rebasin_cli.reports.github import summary
from rebasin_cli.reports.verdicts import Ended, GateResult, raise_unmet, verdict

from .junit_schema import problems


def gate(name, met=True, *, step="", measured=0.04, message="is 0.04 nats, wanted at most 0.05 nats"):
    return GateResult(name, measured, "at most 0.05 nats", met, message, step)


STEPS = [gate("--max-barrier 0.05", step="merge"), gate("loss", False, step="soup"), gate("a", step="merge")]


# values


def test_a_gate_on_what_is_no_number_cannot_be_met():
    for measured in (math.nan, math.inf):
        with pytest.raises(ValueError, match="cannot be met"):
            gate("g", measured=measured)
        assert not gate("g", False, measured=measured).met


def test_missed_gates_end_the_program_with_their_steps_and_sentences():
    with pytest.raises(GateNotMet, match="1 of 3 gates not met") as caught:
        raise_unmet(STEPS)
    assert caught.value.problems == ("step soup: loss: is 0.04 nats, wanted at most 0.05 nats",)
    assert caught.value.gates == (STEPS[1],)
    raise_unmet([STEPS[0]])
    raise_unmet([])


def test_the_share_of_negative_flips_is_of_all_samples():
    assert Flips("accuracy", 200, 150, 3, 5, ()).share == 0.015


# JUnit


def test_junit_has_a_suite_for_every_step_and_a_case_for_every_gate():
    root = ET.fromstring(junit(STEPS, seconds={"merge": 2.0, "soup": 1.5}, properties=[("seed", "0")]))
    suites = {suite.get("name"): suite for suite in root.findall("testsuite")}
    assert list(suites) == ["merge", "soup"]
    assert [case.get("name") for case in suites["merge"].findall("testcase")] == ["--max-barrier 0.05", "a"]
    assert [suites[name].get("failures") for name in suites] == ["0", "1"]
    assert (root.get("tests"), root.get("failures"), root.get("time")) == ("3", "1", "3.500")
    assert suites["soup"].get("time") == "1.500"
    assert suites["soup"].find("testcase/failure").get("message").startswith("is 0.04 nats")
    assert {case.get("classname") for case in root.iter("testcase")} == {"rebasin.merge", "rebasin.soup"}
    assert len(list(root.iter("property"))) == 2


HOSTILE = "<b> ]]> & \x00\x1b[31m \ud800 \ufffe \u202e \n::error::"
ENDED = [
    *STEPS,
    Ended("rebasin merge", "done; written: m", "merged"),
    Ended("rebasin eval", "line 9, step worth: it broke", "worth", "DataError", details=("  in own.py:7",)),
    Ended("rebasin align", "interrupted", "late", "Interrupted", status="interrupted"),
    Ended("rebasin card", "not run, since step worth ended before: failed", "card", skipped=True),
    GateResult(HOSTILE, math.nan, HOSTILE, False, HOSTILE, HOSTILE, HOSTILE, HOSTILE),
    Ended(HOSTILE, HOSTILE, HOSTILE, HOSTILE, details=(HOSTILE,)),
]


def test_a_baseline_that_is_not_there_is_no_gate():
    missed = GateResult("g", 2.0, "at most 1", False, "2 is more than 1")
    met = GateResult("h", 0.5, "at most 1", True, "0.5")
    none = GateResult("baseline", math.nan, "a report", True, "not there yet", skipped=True)
    assert verdict([missed, met, none]) == "1 of 2 gates not met, no baseline yet"
    assert verdict([met, none]) == "1 gate met, no baseline yet" and verdict([none]) == "no baseline yet"


def test_crashes_are_errors_gates_are_failures_and_what_was_not_run_is_skipped():
    root = ET.fromstring(junit(ENDED))
    ends = {
        suite.get("name"): [inner.tag for case in suite.iter("testcase") for inner in case]
        for suite in root.findall("testsuite")[:6]
    }
    assert ends == {
        "merge": ["system-out", "system-out"],
        "soup": ["failure"],
        "merged": ["system-out"],
        "worth": ["error"],
        "late": ["error"],
        "card": ["skipped"],
    }
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("9", "2", "3")
    error = root.find("testsuite[@name='worth']/testcase/error")
    assert error.get("type") == "DataError" and error.get("message") == "line 9, step worth: it broke"
    assert error.text == "line 9, step worth: it broke\n  in own.py:7"


def test_junit_is_valid_whatever_is_in_the_texts():
    text = junit(ENDED, seconds={"merge": 1234567.8}, properties=[(HOSTILE, HOSTILE)], remarks=[HOSTILE])
    assert problems(text) == [] == problems(junit([]))
    assert not any(bad in text for bad in "\x00\x1b\ud800\ufffe\u202e") and "<b>" not in text
    assert "testcase lacks name" in problems(text.replace(' name="rebasin card"', ""))
    other = text.replace("<error", "<system-out", 1).replace("</error>", "</system-out>", 1)
    assert "testsuites rebasin: errors is 3, and there are 2" in problems(other)


def test_a_missed_gate_tells_which_baseline_it_was_held_against_and_since_when():
    known = "good/report.json, sha256 1234…, in git since 2026-11-20 (commit 1a2b3c4)"
    gates = [
        GateResult(f"--baseline {what}", 0.3, "", False, "worse", "path", "line 7", known) for what in "ab"
    ]
    assert junit(gates).count(f"the baseline is {known}") == 2
    assert summary(gates).count(f"*The baseline is {known}.*") == 1
    with pytest.raises(GateNotMet) as caught:
        raise_unmet([*gates, *STEPS])
    assert str(caught.value).splitlines()[-1] == f"  the baseline is {known}"


def test_of_many_missed_gates_a_few_are_told_so_that_what_follows_is_among_the_last_lines():
    with pytest.raises(GateNotMet) as caught:
        raise_unmet([gate(f"g{k}", False) for k in range(9)])
    assert len(str(caught.value).splitlines()) == 7 and "… and 4 more" in str(caught.value)
    assert len(caught.value.gates) == 9
    caught.value.whole = True
    assert len(str(caught.value).splitlines()) == 10


# the step summary


def test_the_summary_of_a_failure_tells_the_step_the_message_and_what_there_is_to_it():
    text = summary(ENDED[:7], ["### More"], title="rebasin run r.yaml")
    assert text.startswith(
        "## rebasin run r.yaml: step worth failed; step late interrupted; 1 of 3 gates not met\n"
    )
    assert (
        "### step worth failed (DataError)\n\n```text\nline 9, step worth: it broke\n  in own.py:7\n```"
        in text
    )
    assert text.index("```text") < text.index("| step | gate |") < text.index("### More")
    alone = [Ended("rebasin run", "r.yaml is not a recipe", "", "UsageError", status="refused")]
    assert summary(alone, title="r").startswith("## r: refused\n\n### refused (UsageError)\n")
    long = Ended("x", "m" * 5_000, "s", "E", details=tuple(f"problem {k}" for k in range(500)))
    text = summary([long])
    assert len(text) < 4_000 and "… and 461 more lines" in text
    assert not any(bad in summary(ENDED) for bad in "\x00\x1b\ud800\ufffe\u202e")


def test_the_summary_begins_with_the_verdict_and_names_every_gate_with_its_step():
    text = summary(STEPS, ["### More\n\nfigures"], title="recipe.yaml")
    assert text.startswith("## recipe.yaml: 1 of 3 gates not met\n")
    assert "| step | gate | result |" in text
    assert "| soup | loss | **✗ not met** | 0.04 | at most 0.05 nats |" in text
    assert text.endswith("### More\n\nfigures\n")
    assert "| step |" not in summary([gate("g")])
    assert summary([], title="x") == "## x\n"


def test_a_summary_is_never_more_than_its_room_and_ends_with_a_section():
    sections = [f"### Section {k}\n\n{'é' * 20_000}" for k in range(40)]
    text = summary(STEPS, sections)
    assert 900_000 < len(text.encode()) <= github.MOST
    kept = text.count("### Section")
    assert text.endswith(f"\n*{40 - kept} sections are left out here: a step summary holds 1 MiB at most.*\n")
    assert text.count("é") == 20_000 * kept


def test_of_too_many_gates_the_missed_ones_come_first():
    many = [gate(f"gate {k}", k < 2_000, message="m" * 900) for k in range(2_005)]
    text = summary(many, ["### More"])
    assert len(text.encode()) <= github.MOST
    assert text.startswith("## rebasin: 5 of 2005 gates not met\n")
    assert text.count("✗ not met") == 5
    assert "gates (0 of them not met) are left out here" in text


def test_a_summary_cannot_be_forged_from_a_gates_name():
    text = summary([gate("a | b\n## <script> @you", False)])
    assert r"| a \| b \#\# \<script\> &#64;you |" in text


# GitHub


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A job's checkout, in a folder of which the recipe is."""
    (tmp_path / "merge").mkdir()
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.chdir(tmp_path / "merge")
    return tmp_path


def test_annotations_name_the_recipe_and_its_line(workspace):
    at = GateResult("g", 1.0, "", False, "too high", "path", "line 12", "good.json")
    (line,) = github.missed([at], "recipe.yaml")
    assert line == (
        "::error file=merge/recipe.yaml,line=12,title=rebasin%3A gate not met in path::"
        "step path: g: too high%0Athe baseline is good.json"
    )
    failed = DataError("line 7, step a: it is broken", hint="next")
    failed.file = str(workspace / "merge" / "a,b:c%.yaml")
    (line,) = github.of_error(failed, str(failed))
    assert line.startswith(
        "::error file=merge/a%2Cb%3Ac%25.yaml,line=7,title=rebasin::line 7, step a: it is broken%0Anext"
    )
    refused = UsageError("3 problems", problems=["line 3: x: y", "--set a=b: no", "line 9, step z: w"])
    refused.file = "recipe.yaml"
    assert github.of_error(refused, str(refused)) == [
        "::error file=merge/recipe.yaml,line=3,title=rebasin::line 3: x: y",
        "::error file=merge/recipe.yaml,title=rebasin::--set a=b: no",
        "::error file=merge/recipe.yaml,line=9,title=rebasin::line 9, step z: w",
    ]
    many = UsageError("many", problems=[f"line {k}: x" for k in range(1, 30)])
    many.file = "recipe.yaml"
    lines = github.of_error(many, str(many))
    assert len(lines) == 10 and "20 more problems: see the log" in lines[-1]
    unread = UsageError("recipe.yaml: no such file")
    unread.file = "../../elsewhere.yaml"
    assert github.of_error(unread, str(unread)) == [
        "::error file=../../elsewhere.yaml,title=rebasin::recipe.yaml: no such file"
    ]


def test_annotations_are_one_line_each_with_githubs_escapes():
    (line,) = github.missed([gate("x:y,z%", False, message="100%\r\n::warning::no", step="a,b:c")])
    assert line.startswith("::error title=rebasin%3A gate not met in a%2Cb%3Ac::step a,b:c: x:y,z%25: 100%25")
    assert "\n" not in line and "\r" not in line
    assert github.error("t", "one\ntwo") == "::error title=rebasin%3A t::one%0Atwo"


def test_met_gates_have_no_annotation_and_the_tenth_says_how_many_more_there_are():
    assert github.missed([gate("g")]) == []
    lines = github.missed([gate(f"g{k}", False) for k in range(15)])
    assert len(lines) == 10 and lines[-1].endswith("::6 more gates are not met: see the log")
    assert len(github.missed([gate(f"g{k}", False) for k in range(10)])) == 10


def test_what_ends_the_program_is_one_annotation_or_one_for_every_missed_gate():
    assert github.of_error(CheckpointError("broken"), "broken\nnext") == [
        "::error title=rebasin::broken%0Anext"
    ]
    with pytest.raises(GateNotMet) as caught:
        raise_unmet(STEPS)
    assert github.of_error(caught.value, str(caught.value)) == github.missed(STEPS)
    assert len(github.error("", "x" * 100_000)) < 5_000


def test_the_summary_file_is_githubs_only_in_a_job_of_github(tmp_path):
    there = {"GITHUB_STEP_SUMMARY": str(tmp_path / "s.md")}
    assert github.step_summary(environ=there) is None
    assert github.step_summary(environ={"GITHUB_ACTIONS": "true"}) is None
    found = github.step_summary(environ=there | {"GITHUB_ACTIONS": "true"})
    assert (found.path, found.asked) == (tmp_path / "s.md", False)
    named = github.step_summary(tmp_path / "own.md", there | {"GITHUB_ACTIONS": "true"})
    assert (named.path, named.asked) == (tmp_path / "own.md", True)


def test_several_commands_share_the_room_of_one_summary(tmp_path):
    path = tmp_path / "s.md"
    for _ in range(4):
        assert github.StepSummary(path).add(STEPS, ["x" * 400_000]) == ""
    assert path.stat().st_size <= github.MOST
    text = path.read_text()
    assert text.count("x" * 400_000) == 2
    assert text.count("1 section is left out here") == 2
    path.write_text("x" * github.MOST)
    github.StepSummary(path).add(STEPS)
    assert path.stat().st_size == github.MOST


def test_a_summary_that_cannot_be_written_fails_only_where_it_was_asked_for(tmp_path):
    path = tmp_path / "no" / "s.md"
    with pytest.raises(ResourceError, match="no folder"):
        github.StepSummary(path).check()
    with pytest.raises(ResourceError, match="--step-summary"):
        github.StepSummary(path).add(STEPS)
    github.StepSummary(path, asked=False).check()
    assert "cannot be written" in github.StepSummary(path, asked=False).add(STEPS)
    with pytest.raises(UsageError, match="is a folder"):
        github.StepSummary(tmp_path).check()
    assert "cannot be written" in github.StepSummary(tmp_path, asked=False).add(STEPS)
    (tmp_path / "link.md").symlink_to("elsewhere")
    assert "cannot be written" in github.StepSummary(tmp_path / "link.md", asked=False).add(STEPS)
    assert not (tmp_path / "elsewhere").exists()
    github.StepSummary(tmp_path / "s.md").check()
    assert not (tmp_path / "s.md").exists()
