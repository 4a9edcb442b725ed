"""However `rebasin run` ends: what it says of itself is of this run, and nothing passes that did not."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rebasin_cli.checkpoints.stages import Staging
from rebasin_cli.commands.recipes.cache import Cache
from rebasin_cli.commands.recipes.documents import Documents, Named
from rebasin_cli.commands.recipes.remembered import Left, Remembered
from rebasin_cli.reports.formats import json as json_format
from rebasin_cli.reports.github import StepSummary
from rebasin_cli.runtime import stop_watch
from tests import processes

from .conftest import contents
from .test_gate import report

RECIPE = """
inputs: {a: a.safetensors, b: b.safetensors}
output_dir: out
steps:
  - align: {models: [a, b]}
  - name: mean
    merge: {models: [a, align], method: none, repair: none, attest: mean.intoto.json}
  - name: look
    verify: {models: [b, align]}
  - card: {models: [mean], base_model: [org/a], out: README.md}
junit: gates.xml
step_summary: summary.md
attest: run.intoto.json
"""
PASSED = {"align.safetensors", "align.perm.safetensors", "mean.safetensors", "mean.intoto.json", "README.md"}
SAYS = {"gates.xml", "summary.md", "run.intoto.json"}
OPTIONS = ("--json", "--result", "result.json", "--junit", "job.xml")


@pytest.fixture
def recipe(pair, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    return path


def names(folder):
    return (
        {path.name for path in Path(folder).iterdir() if path.is_file()} if Path(folder).is_dir() else set()
    )


def ends(file):
    """How every case of a JUnit file ended, by its step."""
    found = {}
    for case in ET.parse(file).getroot().iter("testcase"):
        found[case.get("classname")] = next((one.tag for one in case if one.tag != "system-out"), "")
    return found


def garbage(tmp_path, patch):
    (tmp_path / "b.safetensors").write_bytes(b"garbage")


def no_yaml(tmp_path, patch):
    (tmp_path / "r.yaml").write_text("steps: [")


def no_recipe(tmp_path, patch):
    (tmp_path / "r.yaml").rename(tmp_path / "moved.yaml")


def other_spec(tmp_path, patch):
    (tmp_path / "r.yaml").write_text(RECIPE.replace("models: [a, b]}", "models: [a, b], spec: vgg}"))


def no_net(tmp_path, patch):
    (tmp_path / "net.py").write_text("def net():\n    raise SystemExit(0)\n")
    (tmp_path / "r.yaml").write_text(RECIPE.replace("models: [a, b]}", "models: [a, b], net: 'net.py:net'}"))


def step_raises(error):
    """As its weights get their names."""

    def mean_fails(tmp_path, patch):
        commit = Staging.commit

        def committed(stage):
            if any(name == "mean.safetensors" for _, name in stage._new):
                raise error
            commit(stage)

        (tmp_path / "r.yaml").write_text(RECIPE.replace("attest: mean", "seed: 1, attest: mean"))
        patch.setattr(Staging, "commit", committed)

    return mean_fails


def bug(tmp_path, patch):
    patch.setattr(Cache, "find", int)  # a TypeError, raised by no code but ours


def slow(tmp_path, patch):
    (tmp_path / "r.yaml").write_text(RECIPE.replace("merge: {", "time_limit: 0.0001\n    merge: {seed: 1, "))


# How it ends: what is done, arguments, the exit code, and what JUnit says of `mean` (None: of no step).
WAYS = {
    "a gate is not met": (None, ["--set", "steps.look.models=[a, align]"], 1, ""),
    "an option of a step is wrong": (None, ["--set", "steps.mean.metod=x"], 2, None),
    "a baseline is missing": (None, ["--set", "steps.align.perm=none.safetensors"], 2, None),
    "an argument is wrong": (None, ["--nix"], 2, None),
    "an argument is empty": (None, ["--set", ""], 2, None),
    "a time is none": (None, ["--time-limit", "soon"], 2, None),
    "the recipe is no YAML": (no_yaml, [], 2, None),
    "the recipe is missing": (no_recipe, [], 2, None),
    "an input is garbage": (garbage, [], 3, "skipped"),
    "a spec does not fit": (other_spec, [], 4, "skipped"),
    "the disk is full": (step_raises(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), [], 5, "error"),
    "memory is full": (step_raises(MemoryError()), [], 5, "error"),
    "the network's code ends the program": (no_net, [], 6, "skipped"),
    "a bug": (bug, [], 70, "skipped"),
    "Ctrl-C": (step_raises(KeyboardInterrupt()), [], 130, "error"),
    "a step takes too long": (slow, [], 124, "error"),
    "the run takes too long": (None, ["--time-limit", "0.0001"], 124, ...),  # anywhere
}


AGAIN = {"an argument is empty", "a time is none", "the recipe is missing", "memory is full"}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.sweep if way in AGAIN else ()) for way in WAYS]
)
def test_whatever_way_a_run_ends_its_documents_are_its_own_and_nothing_passes(
    recipe, run, tmp_path, monkeypatch, way
):
    """A run that passes, one that does not, and one that passes again: nothing is computed twice."""
    change, arguments, code, mean = WAYS[way]
    second = (tmp_path / "b.safetensors").read_bytes()
    assert run("run", recipe, *OPTIONS).code == 0
    assert names("out") == PASSED | SAYS and not names("out/not-passed")
    before = {name: content for name, content in contents(tmp_path / "out").items() if name in PASSED | SAYS}
    with monkeypatch.context() as patch:
        if change:
            change(tmp_path, patch)
        outcome = run("run", recipe, *OPTIONS, *arguments)
    assert outcome.code == code, outcome.err
    told = json.loads(outcome.out)
    assert told["exit_code"] == code and told == json.loads((tmp_path / "result.json").read_text())
    junit = ends("job.xml")
    assert set(junit.values()) & {"failure", "error"}  # it does not pass
    assert mean is ... or junit.get("rebasin.mean") == mean
    if "gates.xml" in names("out"):
        assert ends("out/gates.xml") == junit
        assert f"{recipe.name}" in (tmp_path / "out/summary.md").read_text()
    assert "run.intoto.json" not in names("out") and not names("out") & PASSED
    assert "align.safetensors" in names("out/not-passed")
    if "summary.md" in names("out"):
        assert (tmp_path / "out/summary.md").read_text().count("## rebasin run") == 1

    recipe.write_text(RECIPE)  # all is as it was
    (tmp_path / "b.safetensors").write_bytes(second)
    told = run("run", recipe, *OPTIONS).json()
    assert told["exit_code"] == 0 and not names("out/not-passed")
    assert {step["step"]: step["status"] for step in told["steps"]} == dict.fromkeys(
        ("align", "mean", "look", "card"), "unchanged"
    )
    after = contents(tmp_path / "out")
    assert all(
        after[name] == content for name, content in before.items() if name in PASSED | {"run.intoto.json"}
    )


LOADER = """
import os, time

def load(*_, **__):
    print("loading", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            if "STUBBORN" not in os.environ:
                raise
"""
SLOW = """
steps:
  - merge: {models: [a.safetensors, b.safetensors], method: none, repair: none, out: first.safetensors}
  - {name: slow, eval: {models: [merge], net: mlp, data: "slow.py:load"}}
junit: gates.xml
"""


@pytest.fixture
def begun(pair, tmp_path):
    """A process that runs a recipe, and is in its second step, which never ends by itself."""
    (tmp_path / "slow.py").write_text(LOADER)
    (tmp_path / "r.yaml").write_text(SLOW)
    (tmp_path / "r.yaml").touch()
    started = []

    def begun(**environment):
        log = tmp_path.with_name(f"{tmp_path.name}-{len(started)}")
        process = processes.rebasin("run", "r.yaml", "--result", "result.json", log=log, **environment)
        started.append(process)
        while "loading" not in process.err:
            assert process.poll() is None, "the step did not begin"
            time.sleep(0.01)
        time.sleep(0.2)  # it sleeps by now
        return process

    yield begun
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.sweep)]
)
def test_a_signal_ends_a_run_within_a_moment_and_says_where(begun, tmp_path, number, code):
    """In a process: a signal is sent to it."""
    process, since = begun(), time.monotonic()
    process.send_signal(number)
    assert process.wait(20) == code and time.monotonic() - since < 20
    told = json.loads((tmp_path / "result.json").read_text())
    assert (told["exit_code"], told["stopped_at"]) == (code, "slow")
    assert [step["status"] for step in told["steps"]] == ["done", "interrupted"]
    assert "error" in ends("gates.xml").values() and names("not-passed") == {"first.safetensors"}
    assert "in step slow of r.yaml" in process.err


def test_a_second_signal_ends_code_that_catches_the_first(begun, tmp_path):
    """In a process, which ends hard."""
    process, since = begun(STUBBORN="1"), time.monotonic()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143 and time.monotonic() - since < 20
    assert json.loads((tmp_path / "result.json").read_text())["stopped_at"] == "slow"
    assert "error" in ends("gates.xml").values() and names("not-passed") == {"first.safetensors"}


def test_after_a_kill_nothing_of_the_run_before_is_left(begun, run, tmp_path):
    """In a process, which is killed."""
    text = SLOW.replace("- {name: slow", "# {name: slow")
    (tmp_path / "r.yaml").write_text(text)
    assert run("run", "r.yaml", "--result", "result.json").code == 0
    assert {"gates.xml", "result.json"} <= names(".")
    (tmp_path / "r.yaml").write_text(SLOW.replace("gates.xml", "others.xml"))
    process = begun()
    process.kill()
    process.wait()
    assert not {"gates.xml", "result.json"} & names(".")
    (tmp_path / "r.yaml").write_text(text)
    assert run("run", "r.yaml", "--result", "result.json").code == 0


@pytest.mark.parametrize("package", ["typer", "torch"])
def test_a_broken_install_leaves_nothing_of_the_run_before(recipe, run, tmp_path, package):
    """In a process: a package is imported once. What can be told without it is told."""
    assert run("run", recipe, *OPTIONS).code == 0
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise ImportError('broken')\n")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(stop_watch.__file__).parents[2])])
    }
    command = [sys.executable, "-m", "rebasin_cli", "run", str(recipe), *OPTIONS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 70, done.stderr
    assert not names("out") & PASSED and names("out/not-passed") == PASSED
    left = names("out") | names(".")
    if package == "typer":
        assert not left & {*SAYS, "job.xml", "result.json"}
    else:
        assert json.loads(done.stdout)["exit_code"] == 70 and ends("job.xml") == {"rebasin": "error"}


def test_code_that_does_not_hear_of_a_limit_is_ended_all_the_same(tmp_path, monkeypatch):
    """In a process, which ends hard; and patience is short."""
    lines = """
        import time
        from rebasin_cli.errors import TimedOut
        from rebasin_cli.runtime import signals, stop_watch
        stop_watch.PATIENCE, stop_watch.HARDEST = 0.1, 0.3
        told = []
        watch = stop_watch.Watch(lambda interrupt: print(signals.ending(interrupt), flush=True))
        with signals.stoppable(), watch.on(), watch.limited(0.1, TimedOut("over")):
            while True:
                try:
                    time.sleep(60)
                except BaseException:
                    pass
    """
    env = os.environ | {"PYTHONPATH": str(Path(stop_watch.__file__).parents[2])}
    command = [sys.executable, "-c", textwrap.dedent(lines)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (124, "rebasin: over\n")
    assert done.stdout.splitlines()[0] == "over"


def test_nothing_is_removed_but_what_a_run_wrote(recipe, run, tmp_path):
    """Whatever a record says: an input, a link, what somebody changed, and what was there before."""
    run("run", recipe)
    cache, digest = Cache(tmp_path / ".rebasin"), hashlib.sha256(RECIPE.encode()).hexdigest()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "out/gates.xml").write_text("changed")
    mine = hashlib.sha256(b"mine").hexdigest()
    forged = {recipe: digest, tmp_path / "link": mine, tmp_path / "mine": "", tmp_path / "a.safetensors": ""}
    Remembered(cache, recipe, []).keep(Left(forged | {tmp_path / "out/gates.xml": ""}, []))
    assert run("run", recipe).code == 2  # somebody's gates.xml is not replaced
    assert {"r.yaml", "mine", "link", "a.safetensors"} <= names(".")
    assert (tmp_path / "out/gates.xml").read_text() == "changed"


def test_no_link_is_followed_to_put_weights_aside_and_no_file_of_a_persons_gives_way(recipe, run, tmp_path):
    missed = ("run", recipe, "--set", "steps.look.models=[a, align]")
    run("run", recipe)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out/not-passed").symlink_to(tmp_path / "elsewhere")
    outcome = run(*missed, "-q")
    assert outcome.code == 1 and not names("elsewhere") and "must not be taken for passed" in outcome.err
    (tmp_path / "out/not-passed").unlink()
    (tmp_path / "out/not-passed").mkdir()
    (tmp_path / "out/not-passed/mean.safetensors").write_text("mine")
    outcome = run(*missed, "-q")
    assert outcome.code == 1 and "mean.safetensors is in the way" in outcome.err
    assert (tmp_path / "out/not-passed/mean.safetensors").read_text() == "mine"


def test_a_dry_run_moves_nothing_and_knows_what_was_put_aside(recipe, run, tmp_path):
    run("run", recipe, "--set", "steps.look.models=[a, align]")
    before = contents(tmp_path)
    told = run("run", recipe, "--dry-run", "--json").json()
    assert [step["state"] for step in told["steps"]][:2] == ["unchanged", "unchanged"]
    assert contents(tmp_path) == before


def test_recipes_that_share_a_cache_leave_each_other_alone(recipe, run, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("steps: [verify: {models: [a.safetensors, b.safetensors]}]\njunit: other.xml\n")
    assert run("run", recipe).code == 0
    assert run("run", other).code == 1 and run("run", other, "--set", "steps.verify.x=1").code == 2
    assert PASSED | SAYS == names("out") and ends("other.xml") == {"rebasin": "error"}


@pytest.mark.parametrize("change", [no_yaml, no_recipe])
def test_a_recipe_that_cannot_be_read_leaves_nothing_of_a_run_with_other_values(
    recipe, run, tmp_path, change
):
    assert run("run", recipe, "--set", "defaults.seed=3").code == 0
    change(tmp_path, None)
    outcome = run("run", recipe)
    assert outcome.code == 2 and not names("out") and names("out/not-passed") == PASSED


def test_where_the_summary_cannot_be_written_the_other_documents_say_so(recipe, run, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(StepSummary, "add", full)
        outcome = run("run", recipe, *OPTIONS)
    told = json.loads(outcome.out)
    assert outcome.code == told["exit_code"] != 0 and "summary.md" not in names("out")
    assert told == json.loads((tmp_path / "result.json").read_text())
    assert set(ends("job.xml").values()) & {"failure", "error"}
    assert run("run", recipe, *OPTIONS).code == 0


def test_what_a_run_made_and_another_one_reads_stays_where_it_is(recipe, run, tmp_path):
    assert run("run", recipe).code == 0
    inputs = "inputs: {mean: out/mean.safetensors, b: b.safetensors}"
    recipe.write_text(f"{inputs}\noutput_dir: out\nsteps: [{{verify: {{models: [b, mean]}}}}]\n")
    (tmp_path / "b.safetensors").write_bytes(b"garbage")
    assert run("run", recipe).code != 0
    assert "mean.safetensors" in names("out") and "align.safetensors" in names("out/not-passed")


def test_a_summary_that_others_add_to_stays(recipe, run, tmp_path):
    run("run", recipe)
    with open(tmp_path / "out/summary.md", "a") as file:
        file.write("theirs\n")
    run("run", recipe)
    told = (tmp_path / "out/summary.md").read_text()
    assert "theirs" in told and told.count("## rebasin run") == 2


def test_a_second_run_of_a_recipe_waits_for_the_first(recipe, tmp_path):
    """Needs a thread: one waits for the other."""
    said, begun, seen = [], threading.Event(), []
    results = [tmp_path / "first.json", tmp_path / "second.json"]
    documents = [
        Documents(recipe, Cache(tmp_path / ".rebasin"), Named(result=path), say=said.append)
        for path in results
    ]
    (tmp_path / ".rebasin").mkdir()

    def second():
        with documents[1].at_every_end():
            seen.append(begun.is_set())

    with documents[0].at_every_end():
        thread = threading.Thread(target=second)
        thread.start()
        while not said:
            time.sleep(0.01)
        begun.set()
    thread.join(10)
    assert seen == [True] and "another job runs" in said[0]
    assert all(path.exists() for path in results)  # whoever started the first has yet to read its own


def test_weights_in_a_folder_of_their_own_are_put_aside_as_a_whole(pair, run, done, tmp_path):
    (tmp_path / "r.yaml").write_text(
        "steps:\n  - {name: m, merge: {models: [a.safetensors, b.safetensors], method: none, repair: none, "
        "out: m.safetensors, out_shard_size: 2KB}}\n  - verify: {models: [a.safetensors, b.safetensors]}\n"
    )
    outcome = run("run", "r.yaml")
    left = names("not-passed")
    assert outcome.code == 1 and len(left) > 2 and not {name for name in names(".") if name.startswith("m")}
    outcome = run("run", "r.yaml", "--json")
    assert outcome.json()["steps"][0]["status"] == "unchanged" and names("not-passed") == left


def test_reports_of_an_earlier_run_are_no_reports_of_one_that_did_not_come_to_them(pair, run, tmp_path):
    (tmp_path / "stored.json").write_text(json_format.render(report()))
    (tmp_path / "r.yaml").write_text(
        "output_dir: out\nsteps:\n  - verify: {models: [a.safetensors, a.safetensors]}\n"
        "  - gate: {report: stored.json, max_barrier: 0.05, json_file: judged.json, junit: judged.xml}\n"
    )
    found = {"judged.json", "judged.xml"}
    assert run("run", "r.yaml").code == 0 and names("out") == found
    for fails in ("steps.verify.models=[a.safetensors, b.safetensors]", "steps.verify.modles=x"):
        outcome = run("run", "r.yaml", "--set", fails)
        assert outcome.code in (1, 2) and not names("out") and names("out/not-passed") == found
        assert "put aside into out/not-passed/: judged.json, judged.xml" in outcome.err
    outcome = run("run", "r.yaml", "--json")  # nothing is judged twice
    assert outcome.json()["steps"][1]["status"] == "unchanged" and names("out") == found
    outcome = run("run", "r.yaml", "--set", "steps.gate.max_barrier=0.001")
    assert outcome.code == 1 and names("out") == found  # what missed it is of this very run
    assert not names("out/not-passed")  # and nothing is of the run before, which passed
    assert run("run", "r.yaml").code == 0 and names("out") == found
    Documents(tmp_path / "r.yaml", Cache(tmp_path / ".rebasin")).forget()  # and then it is killed
    assert not names("out") and names("out/not-passed") == found


def test_githubs_summary_is_written_beside_that_of_the_recipe(recipe, run, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    run("run", recipe)
    assert (tmp_path / "page.md").read_text() == (tmp_path / "out/summary.md").read_text()
    assert run("run", recipe, "--step-summary", "mine.md").code == 0
    assert (tmp_path / "page.md").read_text().count("## rebasin run") == 1  # another place was named


def test_the_command_to_see_it_at_home_has_the_variables_of_the_recipe(recipe, run, monkeypatch):
    monkeypatch.setenv("SECOND", "b.safetensors")
    recipe.write_text(RECIPE.replace("b: b.safetensors", 'b: "${SECOND}"'))
    outcome = run("run", recipe, "--set", "steps.look.models=[a, align]")
    assert outcome.code == 1 and "See it at home: SECOND=b.safetensors rebasin run " in outcome.err


def test_wrong_arguments_are_annotated_once(recipe, run, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for arguments in (("run", recipe, "--nix"), ("nix",)):
        outcome = run(*arguments)
        assert outcome.code == 2 and outcome.err.count("::error title=rebasin::No such ") == 1, outcome.err
