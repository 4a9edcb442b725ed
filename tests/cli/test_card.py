"""`rebasin card`, and `--attest`: what others read of where a model comes from."""

import hashlib
import json

import pytest
import yaml

from rebasin_cli.checkpoints.checkpoint import open_checkpoint


@pytest.fixture
def merged(trained, done):
    done("merge", *trained, "--repair", "none", "-o", "m.safetensors")
    return "m.safetensors"


def front(path):
    text = path.read_text()
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("---\n")[1]), text.split("---\n", 2)[2]


def test_the_head_names_parents_and_measured_results(merged, done, tmp_path):
    told = done("card", merged, "--base-model", "org/a", "--base-model", "org/b", "--data", "digits",
                "--license", "mit", "--library", "pytorch", "--name", "both", "--json").json()  # fmt: skip
    head, body = front(tmp_path / "README.md")
    assert head["base_model"] == ["org/a", "org/b"] and head["base_model_relation"] == "merge"
    assert head["tags"] == ["merge", "rebasin"] and head["license"] == "mit"
    (result,) = head["model-index"][0]["results"]
    score = done("eval", merged, "--data", "digits", "--json").json()
    assert {m["type"]: m["value"] for m in result["metrics"]} == {
        "accuracy": score["accuracy"], "loss": score["loss"]
    }  # fmt: skip
    assert body.startswith("\n# both\n") and "A merge of 2 models, after alignment by `wm`" in body
    assert told["written"] == ["README.md"]


def test_nothing_is_claimed_that_was_not_measured(merged, done, tmp_path):
    done("card", merged)
    head, body = front(tmp_path / "README.md")
    assert "model-index" not in head and "base_model" not in head and "## Results" not in body
    for digest in json.loads(open_checkpoint(merged).metadata["rebasin.inputs"]):
        assert digest in body


def test_report_and_recipe_stand_on_it(merged, trained, done, tmp_path):
    done("barrier", *trained, "--report", "r", "--repair", "none", "--limit", 100)
    (tmp_path / "recipe.yaml").write_text("steps: []  # ``` in a fence\n")
    done("card", merged, "--barrier", "r/report.json", "--recipe", "recipe.yaml")
    body = front(tmp_path / "README.md")[1]
    assert "## The path between two of its parents" in body and "````yaml\nsteps: []" in body


def test_a_soups_figures_are_not_those_of_fresh_samples(trained, done, tmp_path):
    done("merge", *trained, "--method", "none", "--soup", "greedy", "--data", "digits", "-o", "s.safetensors")
    done("card", "s.safetensors", "--data", "digits")
    assert "was chosen on test samples, so these figures flatter it" in front(tmp_path / "README.md")[1]


def test_a_report_on_other_models_is_refused(merged, pair, trained, done, refused):
    done("barrier", trained[0], trained[0], "--report", "r", "--repair", "none", "--limit", 100)
    done("merge", *pair, "--repair", "none", "-o", "other.safetensors", "--no-prove")
    refused(2, "card", "other.safetensors", "--barrier", "r/report.json", says="is on other models")


def test_a_model_that_was_not_merged_has_no_card(trained, refused):
    refused(2, "card", trained[0], says="does not record that it was merged")


def test_a_card_that_is_there_stays(merged, refused, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    refused(2, "card", merged, says="README.md exists")


@pytest.mark.parametrize("missing", ["--recipe", "--barrier"])
def test_what_cannot_be_read_is_told(merged, refused, missing):
    refused(2, "card", merged, missing, "nowhere", says=f"{missing} nowhere cannot be read")


@pytest.mark.parametrize(
    "command",
    [
        ["align", "a.safetensors", "b.safetensors"],
        ["merge", "a.safetensors", "b.safetensors"],
        ["merge", "a.safetensors", "b.safetensors", "--method", "none", "--repair", "none"],
        ["apply", "p.perm.safetensors", "b.safetensors"],
        ["repair", "m.safetensors", "--endpoints", "a.safetensors", "b.safetensors", "--repair", "bias"],
    ],
    ids=lambda command: " ".join(word for word in command if "." not in word),
)
def test_a_statement_names_files_by_their_digests(pair, done, tmp_path, command):
    done("align", *pair, "-o", "p.safetensors", "-q")
    done("merge", *pair, "--method", "none", "--repair", "none", "-o", "m.safetensors", "-q")
    told = done(*command, "-o", "o.safetensors", "--attest", "o.intoto.json", "--json").json()
    content = json.loads((tmp_path / "o.intoto.json").read_text())
    assert content["_type"] == "https://in-toto.io/Statement/v1"
    assert content["predicateType"] == "https://slsa.dev/provenance/v1"
    asked = content["predicate"]["buildDefinition"]["externalParameters"]
    assert asked["command"] == command[0] and asked["seed"] == 0
    subjects = {one["name"]: one["digest"]["sha256"] for one in content["subject"]}
    assert [*subjects, "o.intoto.json"] == told["written"]
    parents = content["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [parent["name"] for parent in parents] == [
        word for word in command if word.endswith(".safetensors")
    ]
    for one in [*content["subject"], *parents]:
        assert hashlib.sha256((tmp_path / one["name"]).read_bytes()).hexdigest() == one["digest"]["sha256"]


def test_a_statement_that_is_there_is_refused_before_any_work(pair, refused, tmp_path):
    (tmp_path / "o.intoto.json").write_text("mine")
    refused(
        2, "align", *pair, "-o", "o.safetensors", "--attest", "o.intoto.json", says="o.intoto.json exists"
    )
