"""`rebasin run --untrusted`: the whole command, as a job runs the recipe of a pull request from a fork."""

import json

import pytest

EVIL = "from pathlib import Path\nPath('RAN').touch()\ndef build(*given): ...\nload = loss = build\n"
HOSTILE = """
inputs: {a: a.safetensors, b: b.safetensors, c: ../c.safetensors}
output_dir: out
junit: ../gates.xml
step_summary: "${GITHUB_OUTPUT}"
attest: "out/${API_TOKEN:-x}.json"
steps:
  - align: {models: [a, b], net: "evil.py:build", trust_code: true, out: ../../x.safetensors}
  - barrier: {models: [a, b], data: "evil.py:load", loss: "evil:loss", unsafe_load: true}
"""
PLAIN = """
inputs: {a: a.safetensors, b: b.safetensors}
output_dir: out
junit: gates.xml
attest: run.intoto.json
steps: [{align: {models: [a, b], %s}}]
"""


@pytest.fixture
def fork(pair, tmp_path):
    (tmp_path / "evil.py").write_text(EVIL)

    def fork(text):
        (tmp_path / "fork.yaml").write_text(text)
        return tmp_path / "fork.yaml"

    return fork


def test_a_hostile_recipe_is_refused_with_every_line_and_leaves_nothing(fork, run, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "github"))
    monkeypatch.setenv("API_TOKEN", "hunter2")
    recipe = fork(HOSTILE)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.rglob("*"))}
    for more in ((), ("--dry-run",), ("--json",), ("--force",)):
        ended = run("run", recipe.name, "--untrusted", *more)
        told = [line for line in ended.err.splitlines() if line.startswith("  line ")]
        assert ended.code == 2 and {line.split(":")[0] for line in told} == {
            f"  line {number}" for number in (2, 4, 5, 6, 8, 9)
        }, ended.err
        assert len(told) == 11, told
        assert "hunter2" not in ended.out + ended.err
        assert {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.rglob("*"))} == before


def test_what_is_harmless_runs_without_believing_the_folders_records(fork, run, tmp_path):
    recipe = fork(PLAIN % "method: wm")
    elsewhere = tmp_path.parent / f"{tmp_path.name}-cache"
    assert run("run", recipe.name).code == 0  # its records, as a branch may hold some
    (tmp_path / "out" / "align.safetensors").rename(tmp_path / "kept")
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    ended = run("run", recipe.name, "--untrusted", "--json", "--cache", tmp_path / ".rebasin")
    assert (
        ended.code == 0 and ended.json()["steps"][0]["status"] == "done" and ended.json()["untrusted"] is True
    )
    statement = json.loads((tmp_path / "out" / "run.intoto.json").read_text())
    assert statement["predicate"]["buildDefinition"]["externalParameters"]["untrusted"] is True
    assert (tmp_path / "out" / "align.safetensors").read_bytes() == (tmp_path / "kept").read_bytes()
    twice = ("run", recipe.name, "--untrusted", "--json", "--force", "--cache", elsewhere)
    found = [run(*twice).json()["steps"][0]["status"] for _ in range(2)]
    assert found == ["done", "unchanged"]


def test_the_command_line_names_what_the_recipe_may_not(fork, run, tmp_path):
    recipe, given = fork(PLAIN % "seed: 0"), "steps.align.net=evil.py:build"
    ended = run("run", recipe.name, "--untrusted", "--set", given, "--set", "output_dir=../elsewhere")
    assert ended.code == 6 and (tmp_path / "RAN").exists()  # it returns no network
    assert f"--set {given} --set output_dir=../elsewhere --untrusted" in ended.err  # to see it at home


def test_a_spec_of_the_folder_runs_no_code_either(fork, run, tmp_path):
    (tmp_path / "s.yaml").write_text('net: "evil.py:build"\ninclude: mlp\n')
    ended = run("run", fork(PLAIN % "spec: s.yaml").name, "--untrusted")
    assert ended.code == 2 and not (tmp_path / "RAN").exists() and "--trust-code" in ended.err


def test_variables_are_allowed_to_strangers_alone(fork, run):
    ended = run("run", fork(PLAIN % "seed: 0").name, "--untrusted", "--allow-env", "HF_TOKEN=hf_abc")
    assert ended.code == 2 and "hf_abc" not in ended.err + ended.out
    ended = run("run", fork(PLAIN % "seed: 0").name, "--allow-env", "HOME")
    assert ended.code == 2 and "--allow-env is for --untrusted" in ended.err


def test_what_is_wrong_in_a_default_is_told_once(fork, run):
    twice = "steps: [{align: {models: [a, b]}}, {name: again, align: {models: [b, a]}}]\n"
    recipe = "defaults: {net: 'n.py:f'}\n" + PLAIN.partition("steps:")[0] + twice
    ended = run("run", fork(recipe).name, "--untrusted")
    assert ended.code == 2 and ended.err.count("n.py:f is code, or may be; expected a network") == 1, (
        ended.err
    )
    assert "--set defaults.OPTION=VALUE" in ended.err
