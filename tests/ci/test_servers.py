"""What is written for CI servers: valid by their schemas, and their shell lines do what the pages say.

No server is here. Schemas are those that check-jsonschema brings; shell lines run in a shell as the server
would run them, with a `pip` that does nothing, since rebasin is installed already.
"""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
import torch
import yaml

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writing import write_safetensors
from rebasin_cli.networks.training import train
from rebasin_cli.permutations import permutation
from rebasin_cli.spec import library
from rebasin_cli.spec.fitting import fit

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
ACTION = ROOT / ".github" / "actions" / "rebasin" / "action.yml"
WORKFLOWS = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), EXAMPLES / "github.yml"]


def read(path):
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


@pytest.mark.parametrize(
    "schema, files",
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-actions", [ACTION]),
        ("vendor.gitlab-ci", [EXAMPLES / "gitlab.yml"]),
    ],
)
def test_files_satisfy_the_schema_of_their_server(schema, files):
    """In a process: that is how the checker is used."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_recipes_of_the_pages_satisfy_the_schema_of_recipes():
    schema = json.loads((ROOT / "docs" / "recipe.schema.json").read_text(encoding="utf-8"))
    check = jsonschema.Draft202012Validator(schema)
    for name in ("first.yaml", "gated.yaml"):
        check.validate(yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8")))
    assert not check.is_valid(yaml.safe_load((EXAMPLES / "wrong.yaml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A trained model, and the same with its units in another order: a path without a barrier."""
    folder = tmp_path_factory.mktemp("models")
    made = train("mlp", "digits", seed=1, width=32, depth=1, epochs=12, learning_rate=0.01)
    write_safetensors(folder / "a.safetensors", made.tensors, metadata=made.metadata)
    fitted = fit(library.load("mlp"), open_checkpoint(folder / "a.safetensors").shapes)
    moved = permutation.random(fitted.words, torch.Generator().manual_seed(0))
    other = permutation.permuted(made.tensors, fitted, moved)
    write_safetensors(folder / "b.safetensors", other, metadata=made.metadata)
    return folder


@pytest.fixture
def job(tmp_path, models):
    """A checkout with a recipe, and a shell that runs lines in it as a CI server does."""
    work, bin = tmp_path / "merge", tmp_path / "bin"
    work.mkdir()
    bin.mkdir()
    (work / "models").symlink_to(models)
    (work / "recipe.yaml").write_text((EXAMPLES / "gated.yaml").read_text(encoding="utf-8"))
    (bin / "pip").write_text("#!/bin/sh\nexit 0\n")
    (bin / "python").write_text(f'#!/bin/sh\n[ "$1 $2" = "-m pip" ] || exec {sys.executable} "$@"\n')
    (bin / "rebasin").write_text(f'#!/bin/sh\nexec {sys.executable} -m rebasin_cli "$@"\n')
    for program in bin.iterdir():
        program.chmod(0o755)
    plain = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    path = {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def job(lines, folder=tmp_path, **environment):
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", lines]
        env = plain | path | environment
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)

    return job


def inputs_of(arguments=""):
    given = {name: told.get("default", "") for name, told in read(ACTION)["inputs"].items()}
    steps = read(EXAMPLES / "github.yml")["jobs"]["merge"]["steps"]
    used = next(step for step in steps if "rebasin" in step["uses"])
    return given | used["with"] | {"arguments": arguments}


def run_action(job, tmp_path, arguments=""):
    """The composite action as GitHub would run it with the example's inputs: its shell steps in order."""
    inputs = inputs_of(arguments)

    def filled(text):
        for name, value in inputs.items():
            text = text.replace("${{ inputs.%s }}" % name, value)  # noqa: UP031
        return text

    files = {"GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    done = None
    for step in read(ACTION)["runs"]["steps"]:
        if "run" in step:
            env = {name: filled(value) for name, value in step.get("env", {}).items()}
            folder = tmp_path / filled(step.get("working-directory", "."))
            done = job(step["run"], folder, GITHUB_ACTIONS="true", **files, **env)
            if done.returncode:
                break
    return done


def words_of(job, tmp_path, arguments):
    """What the action hands to rebasin, which here writes down its arguments and does nothing."""
    (tmp_path / "bin" / "rebasin").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    done = run_action(job, tmp_path, arguments)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "merge/.rebasin/result.json").read_text().splitlines()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("", []),
        ("--set a=1 --force", ["--set", "a=1", "--force"]),
        ("--set a=1\n--set b=2\n\n  --force\n", ["--set", "a=1", "--set", "b=2", "--force"]),
        ("--set 'a=x  y'\n\"b c\" ''", ["--set", "a=x  y", "b c", ""]),
        (r"--cache C:\new # * ~ $HOME `x`", ["--cache", r"C:\new", "#", "*", "~", "$HOME", "`x`"]),
        ("--set ü=é", ["--set", "ü=é"]),
    ],
)
def test_arguments_of_the_action_may_stand_on_several_lines(job, tmp_path, arguments, words):
    """In a process: a shell reads them."""
    assert words_of(job, tmp_path, arguments) == ["run", "recipe.yaml", "--json", *words]


def test_a_quote_that_is_not_closed_stops_the_action(job, tmp_path):
    done = run_action(job, tmp_path, "--set 'a=1")
    assert done.returncode != 0 and "a quote is not closed" in done.stderr
    assert not (tmp_path / "merge/.rebasin/result.json").exists()


def test_the_action_keeps_what_was_made_also_after_a_missed_gate():
    steps = {step["uses"].partition("@")[0]: step for step in read(ACTION)["runs"]["steps"] if "uses" in step}
    restore, save = steps["actions/cache/restore"], steps["actions/cache/save"]
    assert "always()" in save["if"] and restore["with"]["path"] == save["with"]["path"]
    assert (
        "${{ inputs.outputs }}" in save["with"]["path"]
        and read(ACTION)["inputs"]["outputs"]["default"] == "out"
    )
    assert save["with"]["key"] == "${{ steps.%s.outputs.cache-primary-key }}" % restore["id"]  # noqa: UP031
    kept = [
        cache for cache in read(EXAMPLES / "gitlab.yml")["merge"]["cache"] if "merge/out" in cache["paths"]
    ]
    assert [cache["when"] for cache in kept] == ["always"]


def test_the_container_is_run_as_who_owns_the_folder():
    text = (EXAMPLES / "Containerfile").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "docker run" in line]
    assert '--user "$(id -u):$(id -g)"' in line


def test_the_action_merges_gates_and_reports(job, tmp_path):
    done = run_action(job, tmp_path, "--set defaults.seed=0")
    assert done.returncode == 0, done.stderr
    result = (tmp_path / "output").read_text().removeprefix("result=").strip()
    told = json.loads(Path(result).read_text())
    assert [step["status"] for step in told["steps"]] == ["done"] * 4
    suite = ET.parse(tmp_path / "merge/out/gates.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")
    assert (tmp_path / "merge/out/merged.intoto.json").exists()
    card = (tmp_path / "merge/out/README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["base_model"] == ["org/a", "org/b"]
    assert "A merge of 2 models, as they were given, 1 of them aligned by `wm` before" in card
    assert "all 2 gates met" in (tmp_path / "summary.md").read_text()


@pytest.mark.sweep
def test_a_gate_that_is_missed_is_an_annotation_and_exit_code_1(job, tmp_path):
    done = run_action(job, tmp_path, "--set steps.path.min_accuracy=1")
    assert done.returncode == 1
    assert "::error title=rebasin%3A gate not met" in done.stderr
    assert "1 of 2 gates not met" in (tmp_path / "summary.md").read_text()


@pytest.mark.sweep
def test_arguments_of_the_action_are_words_and_no_shell(job, tmp_path):
    done = run_action(job, tmp_path, "--set steps.path.min_accuracy=0 ; touch broken $(touch broken2)")
    assert done.returncode == 2  # `;` is an argument that rebasin does not know
    assert not list(tmp_path.rglob("broken*"))


@pytest.mark.sweep
def test_the_gitlab_job_runs(job, tmp_path):
    told = read(EXAMPLES / "gitlab.yml")["merge"]
    done = job("\n".join([*told["before_script"], *told["script"]]))
    assert done.returncode == 0, done.stderr
    for path in [*told["artifacts"]["paths"], told["artifacts"]["reports"]["junit"]]:
        assert (tmp_path / path).exists()
    for cache in told["cache"]:
        for path in cache["paths"]:
            assert path == ".pip" or (tmp_path / path).exists()


def shell_lines():
    for path in WORKFLOWS:
        for job in read(path)["jobs"].values():
            yield from (step["run"] for step in job["steps"] if "run" in step)
    text = (EXAMPLES / "Containerfile").read_text(encoding="utf-8").replace("\\\n", "")
    yield from (line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN "))


def test_all_other_shell_lines_can_be_parsed():
    """In a process: a shell reads them."""
    lines = list(shell_lines())
    assert len(lines) >= 5
    for text in lines:
        done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
        assert done.returncode == 0, (text, done.stderr)


def test_only_the_publishing_job_may_publish():
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    rights = {name: job.get("permissions", {}) for name, job in jobs.items()}
    assert rights == {"wheels": {}, "source": {}, "publish": {"id-token": "write"}}
    assert [step["uses"].partition("@")[0] for step in jobs["publish"]["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    for path in WORKFLOWS:
        assert read(path)["permissions"] == {"contents": "read"}
