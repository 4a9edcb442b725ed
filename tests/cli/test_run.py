"""`rebasin run`: real commands in a recipe, on tiny models."""

import hashlib
import io
import json
import math
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.cli import screen as _show
from rebasin_cli.registry.results import plain
from rebasin_cli.spec import library

from ..reports.junit_schema import problems
from .conftest import contents, rebasin, same, tensors

RECIPE = """
rebasin: 1
inputs: {first: a.safetensors, second: b.safetensors}
defaults: {seed: 0}
output_dir: out
steps:
  - align: {models: [first, second]}
  - name: mean
    merge: {models: [first, align], method: none, repair: none}
junit: gates.xml
attest: run.intoto.json
"""


@pytest.fixture
def recipe(pair, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_a_recipe_does_what_its_commands_do(recipe, pair, done, tmp_path):
    shown = done("run", recipe).out
    done("align", *pair, "-o", "x.safetensors")
    done("merge", pair[0], "x.safetensors", "--method", "none", "--repair", "none", "-o", "y.safetensors")
    assert same(tmp_path / "out/align.safetensors", "x.safetensors")
    assert same(tmp_path / "out/mean.safetensors", "y.safetensors")
    assert "── align: done" in shown and "── mean: done" in shown
    again = done("run", recipe).out
    assert "── align: unchanged" in again and "── mean: unchanged" in again


def test_steps_that_measure_show_their_figures_each_time(pair, done, tmp_path):
    (tmp_path / "r.yaml").write_text(
        "defaults: {data: digits, skip_checks: true}\ninputs: {a: a.safetensors, b: b.safetensors}\n"
        "steps: [eval: {models: [a]}, doctor: {models: [a, b], limit: 64}, inspect: {models: [a]}]\n"
    )
    shown = done("run", "r.yaml").out
    alone = [
        done(*words).out
        for words in (
            ("eval", "a.safetensors", "--data", "digits", "--skip-checks"),
            ("inspect", "a.safetensors"),
        )
    ]
    assert "accuracy" in alone[0] and all(text in shown for text in alone) and "reliability" not in shown
    assert "verdict  " in shown and "next     rebasin" in shown
    assert done("run", "r.yaml").out == shown.replace(": done", ": unchanged")


def test_an_option_that_has_to_be_given_is_asked_for_by_its_line(refused, tmp_path):
    (tmp_path / "r.yaml").write_text("steps:\n- train: {net: mlp}\n- train: {net: mlp, data: digits}\n")
    told = refused(2, "run", "r.yaml").err
    assert "line 2: steps[1]: `train` lacks 'data'" in told and "1 problem" in told


def test_figures_that_are_no_numbers_are_read_back():
    told = {"loss": math.nan, "rows": [{"least": -math.inf, "name": "wm"}, math.inf], "n": 3}
    again = _show.numbers(json.loads(json.dumps(plain(told))))
    assert math.isnan(again.pop("loss")) and again == {key: told[key] for key in ("rows", "n")}


def test_its_json_says_what_became_of_every_step(recipe, done):
    told = done("run", recipe, "--json").json()
    assert [(step["step"], step["status"]) for step in told["steps"]] == [("align", "done"), ("mean", "done")]
    assert told["steps"][0]["result"]["proof"]["status"] == "proven"
    assert set(told["steps"][0]["outputs"]) == {"out/align.safetensors", "out/align.perm.safetensors"}
    again = done("run", recipe, "--json").json()
    assert [step["status"] for step in again["steps"]] == ["unchanged"] * 2
    for step, before in zip(again["steps"], told["steps"], strict=True):
        assert step["result"] == before["result"] and step["outputs"] == before["outputs"]


def test_a_dry_run_writes_nothing_but_digests(recipe, done, tmp_path):
    before = contents(tmp_path)
    shown = done("run", recipe, "--dry-run").out
    assert "── align: runs" in shown and "── mean: after align" in shown
    assert "rebasin merge a.safetensors out/align.safetensors --method none" in shown.replace(
        f"{tmp_path}/", ""
    )
    assert {
        name for name in set(contents(tmp_path)) - set(before) if not name.startswith(".rebasin")
    } == set()


def test_set_changes_a_value(recipe, done, tmp_path):
    told = done("run", recipe, "--json", "--set", "steps.mean.weights=[0.9, 0.1]").json()
    assert "0.9,0.1" in told["steps"][1]["command"]
    first = tensors("a.safetensors")["head.weight"]
    second = tensors("out/align.safetensors")["head.weight"]
    assert tensors("out/mean.safetensors")["head.weight"].allclose(0.9 * first + 0.1 * second, atol=1e-6)


def test_everything_wrong_is_told_at_once_and_nothing_runs(recipe, run, tmp_path):
    recipe.write_text(RECIPE.replace("models: [first, second]", "models: [first, thrid], sed: 3"))
    outcome = run("run", recipe)
    assert outcome.code == 2 and "rebasin run --schema" in outcome.err
    for words in ("2 problems", "line 7", "thrid: no such file", "has no 'sed'"):
        assert words in outcome.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["gates.xml"]


def test_what_a_command_would_refuse_is_refused_before_anything_runs(recipe, run, tmp_path):
    recipe.write_text(
        RECIPE.replace("junit:", "  - merge: {models: [first, second], method: wm, limit: 5}\njunit:")
    )
    outcome = run("run", recipe)
    assert outcome.code == 2 and "step merge" in outcome.err and "--limit" in outcome.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["gates.xml"]
    text = (tmp_path / "out/gates.xml").read_text()
    cases = ET.fromstring(text).findall("testsuite")
    assert problems(text) == []
    assert [(suite.get("name"), suite.find("testcase")[0].tag) for suite in cases] == [
        ("align", "skipped"),
        ("mean", "skipped"),
        ("merge", "error"),
    ]


LATE = """
inputs: {first: a.safetensors, second: b.safetensors}
steps:
  - align: {models: [first, second], method: wm}
  - {name: mean, merge: {models: [first, align], method: none, weights: root}}
  - {name: worth, eval: {models: mean, device: gpu, data: digits}}
  - {name: look, doctor: {models: [first, align], device: tpu}}
  - {name: mended, repair: {models: mean, endpoints: [first, align], lambda: 1.5, data: digits}}
  - {name: again, train: {net: mlp, data: digits, out: t.safetensors, schedule: linear}}
  - {name: tiny, train: {net: mlp, data: digits, out: s.safetensors, width: 4, epochs: 1}}
  - {name: judged, barrier: {models: [tiny, again], data: digits, method: am, epochs: 2}}
"""


@pytest.mark.parametrize("older", [False, True])
def test_options_of_steps_whose_models_are_to_come_are_judged_before_anything_runs(
    recipe, run, done, tmp_path, older
):
    """By their commands, all of them at once; what lies there of an earlier run changes nothing."""
    recipe.write_text(LATE)
    if older:
        (tmp_path / "align.safetensors").write_text("no checkpoint")
        (tmp_path / "mean.safetensors").write_text("no checkpoint")
    outcome = run("run", recipe, *["--force"] * older)
    assert outcome.code == 2 and "6 steps cannot be run" in outcome.err
    for told in (
        "line 5, step mean: unknown schedule of weights 'root'",
        "line 6, step worth: unknown device 'gpu'",
        "line 7, step look: unknown device 'tpu'",
        "line 8, step mended: --lambda 1.5 is not between the endpoints",
        "line 9, step again: unknown schedule 'linear'",
        "line 11, step judged: --epochs: the method am has no such option",
    ):
        assert told in outcome.err
    assert not (tmp_path / "s.safetensors").exists()
    assert (tmp_path / "align.safetensors").exists() == older


def test_nothing_is_downloaded_before_all_that_can_be_judged_is(recipe, run, done, pair, monkeypatch):
    content, asked = pair[1].read_bytes(), []

    def opened(address):
        asked.append(address)
        return io.BytesIO(content)

    monkeypatch.setattr("rebasin_cli.commands.recipes.downloads._open", opened)
    digest = hashlib.sha256(content).hexdigest()
    recipe.write_text(f"""
inputs: {{second: {{url: "https://host/b.safetensors", sha256: {digest}}}}}
steps:
  - align: {{models: [a.safetensors, second], device: cpu}}
""")
    line = ("run", recipe, "--download")
    outcome = run(*line, "--set", "steps.align.device=gpu")
    assert outcome.code == 2 and "step align: unknown device 'gpu'" in outcome.err and asked == []
    outcome = run(*line, "--set", "steps.align.seed=-1")
    assert outcome.code == 2 and "steps[1].align.seed" in outcome.err and asked == []
    told = done(*line, "--json").json()
    assert asked == ["https://host/b.safetensors"] and told["downloads"] == [
        {"uri": asked[0], "sha256": digest}
    ]
    assert told["steps"][0]["status"] == "done"


def test_a_step_that_fails_ends_the_run_with_its_exit_code(recipe, run, tmp_path):
    broken = "  - apply: {models: [mean, second]}\n"
    recipe.write_text(RECIPE.replace("junit:", f"{broken}junit:"))
    outcome = run("run", recipe)
    assert outcome.code in (3, 4) and "Traceback" not in outcome.err
    assert (tmp_path / "out/not-passed/mean.safetensors").exists()
    cases = ET.parse(tmp_path / "out/gates.xml").getroot().iter("testcase")
    assert [inner.tag for case in cases for inner in case] == ["system-out", "system-out", "error"]


def test_gates_of_all_steps_are_in_one_junit_file_and_the_exit_code_is_theirs(
    trained, tmp_path, run, monkeypatch
):
    a, b = trained
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"""
defaults: {{data: digits, method: none, repair: none, limit: 100}}
steps:
  - name: easy
    barrier: {{models: ['{a}', '{b}'], max_barrier: 99}}
  - name: hard
    barrier: {{models: ['{a}', '{b}'], gate: ["naive:test:accuracy>=0.999", "naive:test:loss<=90"]}}
  - name: after
    merge: {{models: ['{a}', '{b}']}}
junit: gates.xml
step_summary: summary.md
"""
    )
    outcome = run("run", path, "--json")
    assert outcome.code == 1 and "naive:test:accuracy>=0.999" in outcome.err
    told = json.loads(outcome.out)
    assert [step["status"] for step in told["steps"]] == ["done", "gate not met", "not run"]
    suites = ET.parse("gates.xml").getroot().findall("testsuite")
    assert [(s.get("name"), s.get("tests"), s.get("failures")) for s in suites] == [
        ("easy", "1", "0"),
        ("hard", "2", "1"),
        ("after", "1", "0"),
    ]
    summary = (tmp_path / "summary.md").read_text()
    assert "1 of 3 gates not met" in summary and "| after | not run |" in summary
    going_on = run("run", path, "--json", "--keep-going")
    assert going_on.code == 1
    assert [step["status"] for step in json.loads(going_on.out)["steps"]] == [
        "unchanged",
        "gate not met",
        "done",
    ]


def test_the_statement_is_on_what_was_written_and_made_of_what_was_read(recipe, done, tmp_path):
    done("run", recipe)
    content = json.loads((tmp_path / "out/run.intoto.json").read_text())
    digests = {one["name"]: one["digest"]["sha256"] for one in content["subject"]}
    assert {"out/align.safetensors", "out/mean.safetensors"} <= digests.keys()
    for name, digest in digests.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    parents = content["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [parent["name"].rpartition("/")[2] for parent in parents] == [
        "a.safetensors",
        "b.safetensors",
        "recipe.yaml",
    ]
    before = (tmp_path / "out/run.intoto.json").read_bytes()
    done("run", recipe, "--no-cache")
    assert (tmp_path / "out/run.intoto.json").read_bytes() == before


def test_a_statement_is_on_weights_of_every_format(trained, done, tmp_path):
    torch.save(tensors(trained[0]), "a.pth")
    merge = "merge: {models: [a.pth, a.pth], method: none, out: m.pth}"
    (tmp_path / "r.yaml").write_text(f"attest: s.json\nsteps: [{merge}]")
    done("run", "r.yaml")
    assert [one["name"] for one in json.loads((tmp_path / "s.json").read_text())["subject"]] == ["m.pth"]


def test_ctrl_c_and_the_next_run_goes_on(recipe, interrupted, done):
    recipe.write_text(RECIPE.replace("{models: [first, second]}", "{models: [first, second], method: wm}"))
    left = interrupted("run", recipe)
    assert any(name.endswith("align.search.safetensors") for name in left)
    outcome = done("run", recipe)
    assert "going on with what was interrupted" in outcome.err
    assert "── align: done" in outcome.out


def killed_before_it_was_recorded(monkeypatch):
    """As `kill -9` does: nothing that follows is done, what lies there stays."""
    monkeypatch.setattr("rebasin_cli.commands.recipes.cache.Cache.keep", lambda *_: 1 / 0)
    monkeypatch.setattr("rebasin_cli.commands.recipes.documents.Documents.finish", lambda *_: None)


def test_what_a_killed_run_wrote_is_replaced_without_force(recipe, done, run, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        killed_before_it_was_recorded(patch)
        assert run("run", recipe).code not in (0, 2) and (tmp_path / "out/align.safetensors").exists()
    assert "── align: done" in done("run", recipe).out


def test_a_report_names_the_same_command_whether_an_older_one_lay_there(pair, done, tmp_path):
    """Else a step that is run again after a kill would leave other bytes."""
    path = tmp_path / "recipe.yaml"
    step = "{models: [a.safetensors, b.safetensors], data: digits, limit: 64, skip_checks: true, method: none"
    path.write_text(f"steps:\n  - barrier: {step}, json_file: out.json}}\n")
    done("run", path)
    first = json.loads((tmp_path / "out.json").read_text())
    done("run", path, "--no-cache")
    again = json.loads((tmp_path / "out.json").read_text())
    assert first["command"] == again["command"] and first | {"times": {}} == again | {"times": {}}


def test_what_somebody_put_there_after_a_kill_is_not_replaced(recipe, run, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        killed_before_it_was_recorded(patch)
        run("run", recipe)
    there = tmp_path / "out/align.safetensors"
    there.write_bytes(there.read_bytes()[:-1] + b"!")
    outcome = run("run", recipe)
    assert outcome.code == 2 and "out/align.safetensors exists, and no recipe made it" in outcome.err


def test_files_that_were_restored_with_the_cache_are_still_the_recipes(recipe, done, tmp_path):
    """A CI server restores both: contents are the same, times and inodes others."""
    done("run", recipe)
    for path in (tmp_path / "out").iterdir():
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
    assert "── align: unchanged" in done("run", recipe).out
    assert "── align: done" in done("run", recipe, "--set", "defaults.seed=3").out


def test_a_run_writes_no_file_that_it_reads_and_no_device(recipe, pair, refused, tmp_path):
    """Each would be unlinked or replaced, with --force."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("recipe.yaml")
    os.link(tmp_path / "a.safetensors", tmp_path / "hard")
    (tmp_path / "folder").mkdir()
    before = {path: path.lstat().st_ino for path in tmp_path.iterdir()}
    read = "is read by this very command"
    for name, says in {
        "recipe.yaml": read, "./recipe.yaml": read, "link": read, "a.safetensors": "is read", "hard": read,
        "pipe": "is not a regular file", "/dev/null": "is not a regular file", "folder": "is a folder",
    }.items():  # fmt: skip
        for key in ("junit", "attest", "step_summary"):
            line = (
                f"output_dir: .\nsteps: [merge: {{models: [a.safetensors, b.safetensors]}}]\n{key}: {name}\n"
            )
            (tmp_path / "recipe.yaml").write_text(line)
            refused(2, "run", "recipe.yaml", "--force", says=says)
            refused(2, "run", "recipe.yaml", "--force", "--dry-run", says=says)
    step = "steps: [barrier: {models: [a.safetensors, b.safetensors], data: digits, markdown: recipe.yaml}]"
    (tmp_path / "recipe.yaml").write_text(step)
    refused(2, "run", "recipe.yaml", "--force", says=read)
    refused(2, "run", "recipe.yaml", "--cache", ".", says="a cache is a folder of its own")
    for name in ("pipe", "/dev/zero", "folder", "/proc/kmsg"):
        refused(2, "run", name)
    assert {path: path.lstat().st_ino for path in tmp_path.iterdir()} == before


def test_an_included_spec_that_breaks_breaks_the_step(pair, done, run, tmp_path):
    (tmp_path / "own.yaml").write_text("include: base\n")
    (tmp_path / "base.yaml").write_text((library.folder() / "mlp.yaml").read_text())
    (tmp_path / "r.yaml").write_text(
        "steps: [merge: {models: [a.safetensors, b.safetensors], spec: own.yaml}]"
    )
    done("run", "r.yaml")
    assert "unchanged" in done("run", "r.yaml").out
    (tmp_path / "base.yaml").write_text("tensors: 5\n")
    assert run("run", "r.yaml").code == 4


def test_what_a_step_reads_beside_its_files_makes_it_run_again(trained, done, run, tmp_path):
    """The code that a spec names, and what a torch file's metadata lie in."""
    (tmp_path / "own.yaml").write_text('"\\x69nclude": base\nnet: net.py:build\n')
    (tmp_path / "base.yaml").write_text((library.folder() / "mlp.yaml").read_text())
    (tmp_path / "net.py").write_text("from part_of_net import MLP\ndef build(): return MLP([64, 16, 10])\n")
    (tmp_path / "part_of_net.py").write_text("from rebasin_cli.nets.mlp import MLP\n")
    a = trained[0]
    (tmp_path / "r.yaml").write_text(
        f"steps: [eval: {{models: ['{a}'], data: digits, limit: 32, spec: own.yaml, trust_code: true}}]"
    )
    done("run", "r.yaml")
    assert "unchanged" in done("run", "r.yaml").out
    base = tmp_path / "base.yaml"
    base.write_text(base.read_text() + "# other\n")
    assert "unchanged" not in done("run", "r.yaml").out
    (tmp_path / "part_of_net.py").write_text("raise RuntimeError('broken')\n")
    assert "unchanged" not in run("run", "r.yaml").out
    done("merge", *trained, "--method", "none", "-o", "m.safetensors")
    torch.save(tensors("m.safetensors"), "m.pth")
    done("merge", "m.pth", "m.pth", "--method", "none", "-o", "n.pth")
    (tmp_path / "s.yaml").write_text("steps: [inspect: {models: [n.pth]}]")
    done("run", "s.yaml")
    assert "unchanged" in done("run", "s.yaml").out
    beside = tmp_path / "n.pth.rebasin.json"
    beside.write_text(beside.read_text().replace('"merge"', '"other"'))
    assert "unchanged" not in done("run", "s.yaml").out


def test_what_a_run_says_of_itself_spares_inputs_outputs_and_records(pair, refused, monkeypatch, tmp_path):
    """GitHub's own summary, too, wherever its variable leads."""
    step = "merge: {models: [a.safetensors, b.safetensors], method: none, repair: none, out: m.safetensors}"
    as_torch = step.replace("m.safetensors", "m.pth")
    records, read = "is where the cache .rebasin keeps its records", "is read by this very command"
    for text in (f"steps: [{step.replace('m.safetensors', '.rebasin/files/x.safetensors')}]",
                 f"steps: [{step}]\njunit: .rebasin/steps/x.json",
                 f"steps: [{step}]\nattest: .rebasin/.gitignore",
                 f"steps: [{step}]\nstep_summary: .rebasin/steps/../started/x.json"):  # fmt: skip
        (tmp_path / "r.yaml").write_text(text)
        refused(2, "run", "r.yaml", "--force", says=records)
    (tmp_path / "r.yaml").write_text(f"steps: [{as_torch}]\njunit: m.pth.rebasin.json")
    refused(2, "run", "r.yaml", "--force", says="is written by")
    (tmp_path / "r.yaml").write_text(f"steps: [{step}]")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for name, says in {
        "a.safetensors": read, "r.yaml": read, "m.safetensors": "cannot be both", ".rebasin/files/x": records
    }.items():  # fmt: skip
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / name))
        before = contents(tmp_path)
        outcome = rebasin("run", "r.yaml", "--force")
        assert outcome.code == 2 and says in outcome.err, outcome.err
        after = {name: held for name, held in contents(tmp_path).items() if "locks" not in name}
        assert after.items() - {(".rebasin/.gitignore", b"*\n")} == before.items()


def test_mergekits_file_is_a_plain_average(pair, done, tmp_path):
    path = tmp_path / "mergekit.yaml"
    path.write_text(
        "models:\n  - {model: a.safetensors, parameters: {weight: 1}}\n"
        "  - {model: b.safetensors, parameters: {weight: 3}}\nmerge_method: linear\ndtype: float32\n"
    )
    done("run", path)
    a, b, m = (tensors(name) for name in ("a.safetensors", "b.safetensors", "merge.safetensors"))
    for name in a:
        assert m[name].allclose(0.25 * a[name] + 0.75 * b[name], atol=1e-7)


def test_a_base_model_is_the_reference_by_its_file_and_one_that_is_no_model_is_refused(
    recipe, done, run, tmp_path
):
    text = RECIPE.replace("method: none, repair: none}", "method: wm, repair: none, base_model: BASE}")
    recipe.write_text(text.replace("[first, align]", "[first, second]").replace("BASE", "./b.safetensors"))
    told = done("run", recipe, "--json").json()
    assert told["steps"][1]["command"].count("--reference") == 1
    kept = json.loads(open_checkpoint(tmp_path / "out/mean.safetensors").metadata["rebasin.inputs"])
    assert kept[0] == open_checkpoint(tmp_path / "b.safetensors").digest()
    recipe.write_text(text.replace("[first, align]", "[first, second]").replace("BASE", "recipe.yaml"))
    outcome = run("run", recipe)
    assert outcome.code == 2 and "recipe.yaml is none of the models" in outcome.err


def test_schema_and_recipes_of_command_lines_are_printed(done):
    assert json.loads(done("run", "--schema").out)["title"] == "A recipe of rebasin run"
    assert "- merge:" in done("run", "--from-command", "rebasin merge a.pt b.pt").out


@pytest.mark.parametrize(
    "content, says",
    [(None, "no such file"), (b"\xff\xfe", "not UTF-8"), (b"a: [", "not YAML"), (b"[]", "no recipe")],
)
def test_what_is_no_recipe_is_refused(refused, tmp_path, content, says):
    if content is not None:
        (tmp_path / "r.yaml").write_bytes(content)
    refused(2, "run", "r.yaml", says=says)


def test_a_recipe_has_to_be_named(refused):
    refused(2, "run", says="no recipe is named")


def test_what_an_earlier_run_said_does_not_outlive_it(recipe, done, run, tmp_path):
    done("run", recipe)
    (tmp_path / "b.safetensors").write_bytes(b"garbage")
    outcome = run("run", recipe)
    assert outcome.code == 3 and "step align" in outcome.err
    align, mean = ET.parse(tmp_path / "out/gates.xml").getroot().iter("testcase")
    assert align.find("error") is not None and mean.find("skipped") is not None
    text = (tmp_path / "out/gates.xml").read_text()
    errors = [*ET.fromstring(text).iter("error")]
    assert [error.get("type") for error in errors] == ["CheckpointError"] and problems(text) == []
    assert not (tmp_path / "out/run.intoto.json").exists()


def test_every_missed_gate_of_every_step_is_told(trained, tmp_path, run):
    a, b = trained
    barrier = f"barrier: {{models: ['{a}', '{b}'], max_barrier: 0.0, limit: 100}}"
    (tmp_path / "r.yaml").write_text(
        f"defaults: {{data: digits, method: none, repair: none}}\n"
        f"steps:\n  - name: one\n    {barrier}\n  - name: two\n    {barrier}\n"
    )
    outcome = run("run", "r.yaml", "--keep-going")
    assert outcome.code == 1 and "2 of 2 gates not met" in outcome.err
    assert "one: --max-barrier" in outcome.err and "two: --max-barrier" in outcome.err


GATED = """
defaults: {{data: digits, method: none, repair: none, limit: 100}}
steps:
  - name: path
    barrier: {{models: ['{}', '{}'], max_barrier: 99, json_file: path.json}}
  - name: copy
    merge: {{models: ['{}', '{}']}}
"""


@pytest.fixture
def gated(trained, tmp_path, monkeypatch):
    """A recipe with a gate, in a folder of what a job of GitHub has checked out."""
    path = tmp_path / "merge it" / "r.yaml"
    path.parent.mkdir()
    path.write_text(GATED.format(*trained, *trained))
    monkeypatch.chdir(path.parent)
    for name, value in {"ACTIONS": "true", "WORKSPACE": tmp_path, "STEP_SUMMARY": tmp_path / "s.md"}.items():
        monkeypatch.setenv(f"GITHUB_{name}", str(value))
    return "r.yaml"


def test_the_log_and_the_summary_of_a_job_that_passes_hold_its_figures(gated, done, tmp_path):
    """Also where stdout is a file, and where nothing was measured anew; and once."""
    for status in ("done", "unchanged"):
        told = done("run", gated, "--json")
        lines = told.err.splitlines()
        assert f"── path: {status}" in lines and f"── copy: {status}" in lines
        assert sum(line.strip().startswith("A ") and "test loss" in line for line in lines) == 1
        assert sum("▸ naive: test loss" in line and "nats (chord)" in line for line in lines) == 1
        assert sum("✓ met  --max-barrier 99: naive, test: loss barrier" in line for line in lines) == 1
        summary = (tmp_path / "s.md").read_text()
        assert summary.startswith("## rebasin run r.yaml: 1 gate met\n") and summary.count("## rebasin") == 1
        assert summary.count("| path | --max-barrier 99 | ✓ met |") == 1
        assert summary.count("| **test** 100 samples |") == 1 and "\nnaive: test barrier" in summary
        (tmp_path / "s.md").unlink()
    shown = done("run", gated).out
    assert "── path: unchanged" in shown and "✓ met  --max-barrier 99: naive, test: loss barrier" in shown
    assert not done("run", gated, "--json", "-q").err


def test_the_last_lines_of_a_missed_gate_tell_all_that_is_needed_at_night(gated, run, done, tmp_path):
    done("run", gated)
    os.rename("path.json", "good ones.json")
    good = json.loads(Path("good ones.json").read_text())
    for row in good["rows"]:  # surely better
        for split, curve in row["curves"].items():
            inner = [loss - 1.0 for loss in curve["loss"][1:-1]]
            curve["loss"] = [curve["loss"][0], *inner, curve["loss"][-1]]
            row["barriers"].pop(split, None)  # as those of another curve they would be refused
    good["each"], good["gates"] = {}, []
    Path("good ones.json").write_text(json.dumps(good))
    line = ("run", gated, "--json", "--set", "steps.path.baseline=good ones.json")
    outcome = run(*line, "--set", "steps.path.max_barrier=-5")
    assert outcome.code == 1
    last = outcome.err.splitlines()[-10:]
    begin = next(k for k, text in enumerate(last) if text.startswith("rebasin: 2 of 3 gates not met"))
    first, second, baseline, *_, home = last[begin + 1 :]
    assert first.startswith("  step path: --max-barrier -5: naive, test: loss barrier (chord) is ")
    assert "wanted at most -5 nats: missed by 5" in first
    assert second.startswith("  step path: --baseline chord: ") and "worse than the baseline's" in second
    assert (
        baseline.startswith("  the baseline is good ones.json, sha256 ") and " UTC by the file's" in baseline
    )
    assert home == (
        "See it at home: cd 'merge it' && rebasin run r.yaml --set 'steps.path.baseline=good ones.json' "
        "--set steps.path.max_barrier=-5"
    )
    marks = [text for text in outcome.err.splitlines() if text.startswith("::error")]
    assert len(marks) == 2 and all(
        text.startswith("::error file=merge it/r.yaml,line=4,title=rebasin%3A gate not met in path::")
        for text in marks
    )
    assert "*The baseline is good ones.json, sha256 " in (tmp_path / "s.md").read_text()


def test_so_do_those_of_a_crash_and_its_summary(gated, run, tmp_path):
    (tmp_path / "merge it" / "own.py").write_text("def load(split):\n    raise ValueError('it broke')\n")
    outcome = run("run", gated, "--set", "steps.path.data=own.py:load")
    assert outcome.code == 6
    *_, mark, what, where, home = outcome.err.splitlines()
    assert mark.startswith("::error file=merge it/r.yaml,line=4,title=rebasin::line 4, step path: ")
    assert what.startswith("rebasin: line 4, step path: ") and "ValueError: it broke" in what
    assert where == "  in own.py:2" and home.startswith("See it at home: cd 'merge it' && rebasin run r.yaml")
    summary = (tmp_path / "s.md").read_text()
    assert "(DataError)" in summary and "ValueError: it broke" in summary and "own.py:2" in summary


def test_a_recipe_that_cannot_be_run_has_an_annotation_a_problem(gated, run, tmp_path):
    Path(gated).write_text("steps:\n  - merge: {models: [x]}\n  - algin: {}\n")
    outcome = run("run", gated)
    marks = [text.partition(",title")[0] for text in outcome.err.splitlines() if text.startswith("::error")]
    assert outcome.code == 2 and marks == [f"::error file=merge it/r.yaml,line={k}" for k in (2, 3)]
    summary = (tmp_path / "s.md").read_text()
    assert "refused (UsageError)" in summary and "no command 'algin'" in summary
    Path(gated).write_text("steps: [")
    outcome = run("run", gated)
    assert outcome.code == 2 and "::error file=merge it/r.yaml,line=1,title=rebasin::line 1: " in outcome.err


@pytest.mark.sweep
def test_a_report_can_be_made_again_after_a_missed_gate(trained, tmp_path, run, done):
    a, b = trained
    text = (
        "defaults: {{data: digits, method: none, repair: none, limit: 100}}\n"
        "steps:\n  - barrier: {{models: ['{}', '{}'], report: r, max_barrier: {}}}\n"
    )
    (tmp_path / "r.yaml").write_text(text.format(a, b, "0.0"))
    assert run("run", "r.yaml").code == 1
    (tmp_path / "r.yaml").write_text(text.format(a, b, 99))
    shown = json.loads(done("run", "r.yaml", "--json").out)
    assert shown["steps"][0]["status"] == "done"
    assert {"r/report.json", "r/report.html", "r/junit.xml"} <= set(shown["steps"][0]["outputs"])


def test_folders_as_hugging_face_lays_them_out_are_written_from_a_recipe(pair, tmp_path, done):
    for name in "ab":
        (tmp_path / f"m{name}").mkdir()
        (tmp_path / f"{name}.safetensors").rename(tmp_path / f"m{name}" / "model.safetensors")
        (tmp_path / f"m{name}" / "config.json").write_text("{}")
    text = "steps:\n  - merge: {models: [ma, mb], method: none, repair: none, copy_files: true, out: m/}\n"
    (tmp_path / "r.yaml").write_text(text)
    assert "── merge: done" in done("run", "r.yaml").out
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"model.safetensors", "config.json"}
    assert "── merge: unchanged" in done("run", "r.yaml").out
    (tmp_path / "ma" / "config.json").write_text('{"x": 1}')
    assert "── merge: done" in done("run", "r.yaml").out
    assert (tmp_path / "m" / "config.json").read_text() == '{"x": 1}'


def test_shards_are_named_by_the_step_that_wrote_them(recipe, done, tmp_path):
    recipe.write_text(
        RECIPE.replace("{models: [first, second]}", "{models: [first, second], out_shard_size: 1kB}")
    )
    assert "── mean: done" in done("run", recipe).out
    assert (tmp_path / "out/align.safetensors.index.json").exists()
    shown = done("run", recipe).out
    assert "── align: unchanged" in shown and "── mean: unchanged" in shown


def test_mergekits_file_in_the_place_of_a_model_or_a_spec_is_told_with_its_command_line(pair, done, refused):
    asks = "models: [{model: a.safetensors, parameters: {weight: 0.8}}, {model: b.safetensors, parameters: "
    Path("m.yml").write_text(
        asks + "{weight: -0.8}}]\nmerge_method: task_arithmetic\nbase_model: c.safetensors"
    )
    Path("c.safetensors").write_bytes(pair[0].read_bytes())
    line = "rebasin merge c.safetensors a.safetensors b.safetensors --method none --repair none"
    line += " --weights 1,0.8,-0.8"
    for code, command in (
        (2, ("merge", "m.yml")),
        (3, ("merge", "m.yml", "a.safetensors")),
        (3, ("inspect", "m.yml")),
        (4, ("align", "a.safetensors", "b.safetensors", "--spec", "m.yml")),
        (4, ("align", "a.safetensors", "b.safetensors", "--spec=m.yml")),
    ):
        told = refused(code, *command, says=("m.yml is a file of mergekit", line)).err
        assert len(told.splitlines()) == 2
    done(*line.split()[1:], "-o", "line.safetensors")
    done("run", "m.yml")
    assert tensors("merge.safetensors").keys() == tensors("line.safetensors").keys()
    assert same("merge.safetensors", "line.safetensors")
    Path("d.yml").write_text(Path("m.yml").read_text().replace("task_arithmetic", "dare_ties"))
    says = ("rebasin has linear, slerp or task_arithmetic, not 'dare_ties'", "rebasin cannot do what it asks")
    refused(3, "merge", "a.safetensors", "d.yml", says=says)
    Path("other.yml").write_text("steps: []")
    assert "mergekit" not in refused(3, "merge", "a.safetensors", "other.yml").err
