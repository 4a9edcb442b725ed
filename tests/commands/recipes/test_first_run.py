"""A baseline in a recipe: missing on a first run, judged anew without measuring, and never replaced by it."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from rebasin_cli.commands.recipes import dry_runs, reader, runner, statements
from rebasin_cli.commands.recipes.cache import Cache
from rebasin_cli.commands.recipes.limits import Limits
from rebasin_cli.commands.recipes.recipe import parse
from rebasin_cli.commands.recipes.runner import How, Performed
from rebasin_cli.commands.recipes.vocabulary import vocabulary
from rebasin_cli.commands.verbs.before import known
from rebasin_cli.errors import GateNotMet
from rebasin_cli.measure import gates
from rebasin_cli.measure.thresholds import asked as asked_for
from rebasin_cli.reports import Curve, Report, Row, barrier_of
from rebasin_cli.reports.formats import json as json_format
from rebasin_cli.session.listener import Listener

STEP = "steps: [{name: path, barrier: {models: [a.safetensors, b.safetensors], %s}}]"
ACCEPT = "baseline: {file: base.json, missing: accept}"


@pytest.fixture
def parsed():
    """The recipe that a text says to the real commands, and what is wrong with it."""

    def parsed(text, *, assignments=(), environment=None, limits=None):
        problems = reader.Problems()
        root = reader.read(text, environment or {}, problems)
        root = reader.with_set(root, list(assignments), environment or {}, problems)
        return parse(root, vocabulary(), problems, limits=limits), problems.in_order()

    return parsed


@pytest.fixture
def step(parsed):
    def step(options, **how):
        made, problems = parsed(STEP % options, **how)
        assert problems == []
        return made.steps[0]

    return step


@pytest.fixture
def wrong(parsed):
    def wrong(text, **how):
        return "\n".join(parsed(text, **how)[1])

    return wrong


# what a step may say


def test_a_baseline_is_a_file_or_one_with_what_may_be_missing(step, tmp_path):
    accepting = ["--baseline", "base.json", "--missing-baseline", "accept"]
    first = step(ACCEPT)
    assert first.line()[-4:] == accepting and first.awaited == (Path("base.json"),)
    assert Path("base.json") not in first.reads
    parts = step("baseline: {file: base.json, missing: accept, tolerance: 0.02}").line()
    assert parts[-6:] == [*accepting, "--baseline-tolerance", "0.02"]
    assert step("baseline: base.json, missing_baseline: accept").line()[-4:] == accepting
    (tmp_path / "base.json").write_text("{}")
    second = step(ACCEPT)
    assert second.line() == first.line() and second.awaited == ()
    assert second.reads[-1] == Path("base.json") and second.judging == (Path("base.json"),)
    assert step("baseline: base.json").line()[-2:] == accepting[:2]
    told = STEP % "limit: 5" + "\ndefaults: {baseline: {file: base.json, missing: accept}}"
    problems = reader.Problems()
    (one,) = parse(reader.read(told, {}, problems), vocabulary(), problems).steps
    assert problems == [] and one.line()[-4:] == accepting


def test_a_step_that_names_its_own_baseline_is_not_as_lenient_as_the_defaults(parsed):
    told = STEP % "baseline: mine.json" + "\ndefaults: {baseline: {file: base.json, missing: accept}}"
    assert "mine.json: no such file" in "\n".join(parsed(told)[1])
    _, problems = parsed(STEP % ACCEPT, assignments=["steps.path.baseline=mine.json"])
    assert "mine.json: no such file" in problems[0]
    made, problems = parsed(STEP % ACCEPT, assignments=["steps.path.baseline.file=mine.json"])
    assert problems == [] and made.steps[0].awaited == (Path("mine.json"),)
    apart = STEP % ACCEPT + "\ndefaults: {baseline_tolerance: 0.02}"  # it is of no file
    made, problems = parsed(apart)
    assert problems == [] and made.steps[0].line()[-2:] == ["--baseline-tolerance", "0.02"]


def test_what_names_no_baseline_is_told_how_a_first_run_is_written(wrong, tmp_path):
    how = "on a first run: `baseline: {file: FILE, missing: accept}`"
    for options in (
        "baseline: ",
        "baseline: ''",
        'baseline: "${BASELINE:-}"',
        "baseline: {file: , missing: accept}",
        'baseline: {file: "${BASELINE:-}", missing: accept}',
    ):
        assert how in wrong(STEP % options), options
    (tmp_path / "main.json").write_text("{}")
    told = wrong(STEP % "baseline: mian.json")
    assert "mian.json: no such file; did you mean main.json?" in told
    assert "on a first run: `baseline: {file: mian.json, missing: accept}`" in told
    assert "lacks its file" in wrong(STEP % "baseline: {missing: accept}")
    assert "no part 'mising'; did you mean missing?" in wrong(
        STEP % "baseline: {file: b.json, mising: accept}"
    )
    assert "unknown 'maybe'" in wrong(STEP % "baseline: {file: main.json, missing: maybe}")
    both = "baseline: {file: main.json, missing: accept}, missing_baseline: refuse"
    assert "stands here and as 'missing_baseline'" in wrong(STEP % both)
    assert "no file is called like" in wrong(STEP % "baseline: {file: 'x*.json', missing: accept}")
    os.symlink("nowhere", tmp_path / "link.json")
    assert "link.json: no such file" in wrong(STEP % "baseline: {file: link.json, missing: accept}")


def test_a_recipe_does_not_replace_what_it_is_held_against(wrong, parsed, tmp_path):
    (tmp_path / "r.json").write_text("{}")
    step = "{barrier: {models: [a.safetensors, b.safetensors], baseline: {file: %s, missing: accept}}}"
    promote = "{promote: {report: r.json, baseline: %s}}"
    said = "step 'barrier' is held against"
    for here in ("base.json", "./base.json", str(tmp_path / "base.json")):
        for order in ([step % "base.json", promote % here], [promote % here, step % "base.json"]):
            assert said in wrong(f"steps: [{', '.join(order)}]"), order
            (tmp_path / "base.json").write_text("{}")
            assert said in wrong(f"steps: [{', '.join(order)}]"), order
            (tmp_path / "base.json").unlink()
    gate = "{gate: {report: r.json, baseline: base.json}}"
    (tmp_path / "base.json").write_text("{}")
    assert "step 'gate' is held against" in wrong(f"steps: [{gate}, {promote % 'base.json'}]")
    (tmp_path / "base.json").unlink()
    assert "is read here, and written by" in wrong(f"steps: [{step % 'base.json'}]\njunit: base.json")
    made, problems = parsed(f"steps: [{step % 'base.json'}, {promote % 'next.json'}]\noutput_dir: out")
    assert problems == [] and made.steps[1].line() == ["promote", "r.json", "next.json"]
    assert made.steps[1].writes == {"": Path("next.json")}


def test_a_stranger_s_recipe_promotes_nothing_and_learns_of_no_file(wrong, tmp_path):
    (tmp_path / "r.json").write_text("{}")
    told = "output_dir: out\nsteps: [{promote: {report: r.json, baseline: base.json}}]"
    assert "only the command line may say what is replaced" in wrong(told, limits=Limits())
    outside = "output_dir: out\n" + STEP % "baseline: {file: ../secret.json, missing: accept}"
    there = wrong(outside, limits=Limits())
    assert "leads out of this folder" in there and "no such file" not in there
    inside = "output_dir: out\n" + STEP % ACCEPT
    assert wrong(inside, limits=Limits()) == ""


# judged anew


def measured(loss):
    curve = Curve((0.0, 0.5, 1.0), (0.3, loss, 0.3), {"accuracy": (0.9, 0.8, 0.9)}, 100)
    row = Row("aligned", {"test": curve}, {"test": barrier_of(curve)}, shipped=True)
    return Report("0", "", 0, (), {}, {}, {}, {}, (), (row,))


class Commands:
    """Stands for `barrier`: measures, or takes what was measured before, and judges one limit."""

    def __init__(self, loss=0.4):
        self.loss, self.ran = loss, []

    def __call__(self, step, more):
        before, line = known(), step.line(**more)
        self.ran.append("judged" if before else "measured")
        limit = float(line[line.index("--max-barrier") + 1])
        report = gates.judged(before or measured(self.loss), gates.GateSet(asked_for([], max_barrier=limit)))
        report = dataclasses.replace(report, command=" ".join(line))
        out = Path(line[line.index("--json-file") + 1])
        out.write_text(json_format.render(report))
        met = all(gate.met for gate in report.gates)
        return Performed(json.loads(out.read_text()), None if met else GateNotMet("not met"))


@pytest.fixture
def run(step, tmp_path):
    """Run a barrier with these options; its status, and whether it measured."""

    def run(limit, more="", how=How(), commands=None):  # noqa: B008
        made = step(f"json_file: out.json, max_barrier: {limit}{', ' * bool(more)}{more}")
        commands = commands or Commands()
        cache = Cache(tmp_path / ".rebasin")
        (outcome,) = runner.run([made], cache, commands, Listener(), how)
        return outcome.status, *commands.ran

    return run


def found(path="out.json"):
    return json_format.load(Path(path).read_text())


def test_other_gates_are_judged_by_what_was_measured(run):
    assert run(0.2) == ("done", "measured")
    assert run(0.2) == ("unchanged",)
    assert run(0.3) == ("done", "judged")
    assert found().gates[0].text == "--max-barrier 0.3" and "--max-barrier 0.3" in found().command
    assert run(0.01) == ("gate not met", "judged") and not found().gates[0].met
    assert run(0.01) == ("gate not met", "judged")
    assert run(0.2) == ("done", "judged") and found().gates[0].met


def test_a_gate_that_was_missed_is_not_measured_again_and_a_looser_one_is_judged(run):
    assert run(0.01) == ("gate not met", "measured")
    assert run(0.01) == ("gate not met", "judged")
    assert run(0.2) == ("done", "judged")


def test_another_baseline_is_judged_and_one_that_came_is(run, tmp_path):
    assert run(0.2, ACCEPT) == ("done", "measured")
    assert run(0.2, ACCEPT) == ("unchanged",)
    (tmp_path / "base.json").write_text("1")
    assert run(0.2, ACCEPT) == ("done", "judged")
    (tmp_path / "base.json").write_text("2")
    assert run(0.2, ACCEPT) == ("done", "judged")
    assert run(0.2) == ("done", "judged")


def test_whatever_else_changes_is_measured(run, tmp_path):
    run(0.2)
    assert run(0.2, "limit: 5") == ("done", "measured")
    assert run(0.2, "gate: ['aligned + reset:test:loss<=9']") == ("done", "measured")
    assert run(0.2, "gate: ['aligned + reset:test:loss<=8']") == ("done", "judged")
    assert run(0.2, "gate: ['aligned:test:loss<=8']") == ("done", "judged")
    assert run(0.2, how=How(again=True)) == ("done", "measured")
    (tmp_path / "a.safetensors").write_text("another")
    assert run(0.2) == ("done", "measured")


def test_a_file_that_more_than_gates_depend_on_is_measured_again(parsed, tmp_path):
    (tmp_path / "base.json").write_text("1")
    text = STEP.replace("{name", "{depends: [base.json], name") % "baseline: base.json"
    made, problems = parsed(text)
    assert (
        problems == []
        and made.steps[0].judging == ()
        and Path("base.json") in made.steps[0].measuring().reads
    )


def test_what_was_measured_is_believed_only_as_it_was_written(run, tmp_path):
    run(0.01)
    (record,) = (tmp_path / ".rebasin/measured").iterdir()
    text = record.read_text()
    record.write_text(text.replace("0.4", "0.3"))
    assert run(0.01) == ("gate not met", "measured")
    (record,) = (tmp_path / ".rebasin/measured").iterdir()
    kept = json.loads(record.read_text())
    run(0.01, "limit: 5", commands=Commands(loss=0.3))
    (other,) = set((tmp_path / ".rebasin/measured").iterdir()) - {record}
    record.write_bytes(other.read_bytes())  # of another step: its gates would be met
    assert run(0.01) == ("gate not met", "measured")
    assert json.loads(record.read_text()) == kept


def test_a_report_that_somebody_changed_is_not_taken_over(run):
    run(0.01)
    Path("out.json").write_text(Path("out.json").read_text().replace('"met": false', '"met": true'))
    assert run(0.01) == ("failed",)


def test_inputs_that_change_while_a_gate_is_missed_are_told_and_not_recorded(run, tmp_path):
    class Changing(Commands):
        def __call__(self, step, more):
            done = super().__call__(step, more)
            (tmp_path / "a.safetensors").write_text("another")
            return done

    assert run(0.01, commands=Changing()) == ("failed", "measured")
    assert not list((tmp_path / ".rebasin").glob("measured/*"))


def test_a_baseline_that_appears_while_a_step_runs_fails_it(run, tmp_path):
    class Appearing(Commands):
        def __call__(self, step, more):
            (tmp_path / "base.json").write_text("1")
            return super().__call__(step, more)

    assert run(0.2, ACCEPT, commands=Appearing()) == ("failed", "measured")


def test_a_dry_run_judges_by_what_was_measured(step, tmp_path, run):
    run(0.2)
    seen = []

    def perform(step, more):
        seen.append(known())
        return Performed({})

    made = step("json_file: out.json, max_barrier: 0.3")
    dry_runs.check([made], Cache(tmp_path / ".rebasin"), perform, How())
    assert [report is not None for report in seen] == [True]


def test_a_ci_cache_is_found_by_what_is_measured_and_kept_by_gates_as_well(parsed, tmp_path):
    def key(options):
        made, problems = parsed(STEP % options)
        assert problems == []
        return statements.of(made).split("-")

    asked, inputs = key("max_barrier: 1")
    assert key("max_barrier: 2")[0] == asked and key("max_barrier: 2")[1] != inputs
    assert key("max_barrier: 1, limit: 5")[0] != asked
