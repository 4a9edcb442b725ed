"""rebasin compare."""

import json
from pathlib import Path

import pytest

from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.learning.training import train


@pytest.fixture(scope="session")
def three(trained, tmp_path_factory):
    made = train("mlp", "digits", seed=3, width=16, depth=1, epochs=8, learning_rate=0.01)
    path = tmp_path_factory.mktemp("third") / "c.safetensors"
    write_safetensors(path, made.tensors, metadata=made.metadata)
    return [*trained, path]


def test_methods_side_by_side(three, done):
    outcome = done(
        "compare", *three, "-m", "wm", "-m", "universe", "--points", "2", "--sharpness", "--probes", "2"
    )
    lines = [line.split() for line in outcome.out.splitlines()]
    for words in (["2", "models"], ["3", "models"]):
        assert any(line[:2] == words for line in lines)
    assert (
        sum(line[:1] == ["universe"] and line[-1] == "%" for line in lines) == 4
    )  # 2 splits × 2 and 3 models
    for words in ("Distances and angles", "null: independent points", "Cycle inconsistency", "wm, merged"):
        assert words in outcome.out
    assert "proof  proven" in outcome.out and "plan: 17 points in 2 rows" in outcome.err


def test_files_and_json(three, done):
    options = ("--points", "1", "-m", "merge-many", "--report", "many", "--markdown", "summary.md")
    printed = done("compare", *three, *options, "--json").json()
    assert printed["schema"] == "rebasin.compare/3" and printed["data"]["name"] == "digits"
    assert printed["command"].startswith("rebasin compare") and printed["seed"] == 0
    with open("many/compare.json") as file:
        assert json.load(file) == printed
    with open("many/compare.md") as one, open("summary.md") as two:
        assert one.read() == two.read()
    with open("many/compare.html") as file:
        page = file.read()
    assert "<h1>Merging 3 models</h1>" in page and "rebasin compare " in page
    assert "merge-many: 3 models merged, loss " in page
    done("compare", *three, "--points", "1", "--limit", "50", "--html", "own.html", "-q")
    with open("many/compare.png", "rb") as file:
        assert file.read(4) == b"\x89PNG"
    again = done("compare", *three, *options, "--json", "--force").json()
    for run in (printed, again):
        assert run.pop("times").keys() == {"merge-many", "total"}
        run.pop("command")
    assert again == printed


def test_batchnorm_is_reset_unless_told_otherwise(resnets, done):
    options = ("--data", "npz:pictures.npz", "--skip-checks", "--points", "0", "-m", "none", "--json")
    assert done("compare", *resnets, *options).json()["repair"] == "reset"
    assert done("compare", *resnets, *options, "--repair", "none").json()["repair"] == "none"


def test_a_dry_run_measures_nothing(three, done, tmp_path):
    outcome = done(
        "compare", *three, "-m", "wm", "-m", "universe", "--report", "many", "--dry-run", "--json"
    ).json()
    assert outcome["method"] == "wm, universe" and outcome["points"] == 3 + 2 * (2 + 3 + 10)
    assert not (tmp_path / "many").exists()


def test_the_mean_without_the_reference(three, done):
    outcome = done("compare", *three, "--points", "0", "--without-reference", "-q")
    assert outcome.out.count("wm, without the first") == 4  # 2 splits × 2 and 3 models
    plan = done("compare", *three, "--points", "0", "--without-reference", "--dry-run", "--json").json()
    assert plan["points"] == 3 + 2 * 2 + 3


def test_what_is_refused(three, refused, tmp_path):
    refused(2, "compare", three[0], says="at least two models")
    refused(2, "compare", *three, "-m", "wm", "-m", "wm", says="--method wm is given twice")
    refused(2, "compare", *three, "-m", "universal", says="unknown method 'universal'")
    refused(2, "compare", *three, "--repair", "rescale", says="compared with reset, or with none")
    (tmp_path / "taken.md").write_text("mine")
    refused(2, "compare", *three, "--markdown", "taken.md", says="taken.md exists")
    refused(3, "compare", *three, "nowhere.safetensors", says="nowhere.safetensors")
    refused(6, "compare", *three, "--normalize", "-9/0.001", says="right data, normalised right")


def test_options_go_to_the_methods_that_have_them(three, done, refused):
    few = ["compare", *three[:2], "--data", "digits", "--limit", "100", "--skip-checks", "--points", "0"]
    outcome = done(*few, "-m", "wm", "-m", "ste-mm", "--epochs", "1", "--lr", "0.01", "--json")
    assert [method["name"] for method in outcome.json()["methods"]] == ["wm", "ste-mm"]
    refused(2, *few, "-m", "wm", "-m", "none", "--epochs", "1", says="the method wm has no such option")


def test_a_network_that_is_missing_is_told_before_data_are_opened(pair, refused, tmp_path):
    text = (Path(__file__).parents[2] / "specs" / "mlp.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("net:")]
    (tmp_path / "nonet.yaml").write_text("\n".join(lines) + "\n")
    command = ("compare", *pair, "--spec", "nonet.yaml", "--data", "nowhere.py:load")
    refused(2, *command, says="names no network")
