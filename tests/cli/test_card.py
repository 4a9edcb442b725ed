"""`rebasin card`, and `--attest`: what others read of where a model comes from."""

import hashlib
import json

import pytest
import yaml

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.spec import library

QUICK = ("--method", "wm", "--points", 3, "--repair", "none", "--limit", 100)


@pytest.fixture
def merged(trained, done):
    done("merge", *trained, "--method", "wm", "--repair", "none", "-o", "m.safetensors")
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
    shown = done("card", merged, "--data", "digits", "-o", "again.md").out
    assert f"digits test, loss {score['loss']:.4f}, accuracy {score['accuracy']:.4f}" in shown


def test_of_a_search_by_auto_it_says_what_that_chose(trained, done, tmp_path):
    done("merge", *trained, "--budget", "2G", "--repair", "none", "-o", "m.safetensors")
    done("card", "m.safetensors")
    assert "A merge of 2 models, after alignment by `auto`, which chose `" in front(tmp_path / "README.md")[1]


def test_nothing_is_claimed_that_was_not_measured(merged, done, tmp_path):
    assert "scores" not in done("card", merged).out
    head, body = front(tmp_path / "README.md")
    assert "model-index" not in head and "base_model" not in head and "## Results" not in body
    for digest in json.loads(open_checkpoint(merged).metadata["rebasin.inputs"]):
        assert digest in body


def test_report_and_recipe_stand_on_it(merged, trained, done, tmp_path):
    done("barrier", *trained, *QUICK, "--json-file", "r.json")
    (tmp_path / "recipe.yaml").write_text("steps: []  # ``` in a fence\n")
    done("card", merged, "--barrier", "r.json", "--recipe", "recipe.yaml")
    body = front(tmp_path / "README.md")[1]
    assert "## The path between two of its parents" in body and "````yaml\nsteps: []" in body


def test_a_soups_figures_are_not_those_of_fresh_samples(trained, done, tmp_path):
    done("merge", *trained, "--method", "none", "--soup", "greedy", "--data", "digits", "-o", "s.safetensors")
    done("card", "s.safetensors", "--data", "digits")
    assert "was chosen on test samples, so these figures flatter it" in front(tmp_path / "README.md")[1]


def story(path):
    """The sentence that tells what the model is."""
    return next(line for line in front(path)[1].splitlines() if line.startswith("A "))


def test_of_models_aligned_before_it_says_what_they_record_and_nothing_else(trained, done, tmp_path):
    a, b = trained
    done("align", a, b, "-o", "x.safetensors")
    done("merge", a, "x.safetensors", "--method", "none", "--repair", "none", "-o", "m.safetensors")
    done("card", "m.safetensors")
    assert "A merge of 2 models, as they were given" in story(tmp_path / "README.md")
    assert "align" not in story(tmp_path / "README.md")
    barrier = ("barrier", a, "x.safetensors", "--method", "none", *QUICK[2:])
    done(*barrier, "--json-file", "r.json")
    done("card", "m.safetensors", "--barrier", "r.json", "--force")
    assert "as they were given, 1 of them aligned by `wm` before" in story(tmp_path / "README.md")


def test_a_soup_counts_those_that_it_kept(trained, done, tmp_path):
    soup = (
        "merge",
        *trained,
        "--method",
        "none",
        "--soup",
        "greedy",
        "--data",
        "digits",
        "-o",
        "s.safetensors",
    )
    kept = len(done(*soup, "--json").json()["soup"])
    done("card", "s.safetensors")
    assert f"A greedy soup that kept {kept} of 2 models" in story(tmp_path / "README.md")
    assert kept == 1  # aligned by nothing: their mean is no good


def test_a_repaired_model_is_a_merge_of_its_endpoints(trained, done, tmp_path):
    a, b = trained
    done("align", a, b, "-o", "x.safetensors")
    done("merge", a, "x.safetensors", "--method", "none", "--repair", "none", "-o", "m.safetensors")
    done(
        "repair",
        "m.safetensors",
        "--endpoints",
        a,
        "x.safetensors",
        "--repair",
        "bias",
        "-o",
        "r.safetensors",
    )
    done("card", "r.safetensors")
    assert "A merge of 2 models, repaired by `bias` afterwards" in story(tmp_path / "README.md")


@pytest.mark.sweep
def test_a_report_is_on_parents_or_on_these_as_they_were_aligned(merged, trained, done, refused, tmp_path):
    a, b = trained
    barrier = ("barrier", "--method", "none", "--repair", "none", "--limit", 100, "--force")
    done("align", a, b, "-o", "x.safetensors")
    done(*barrier, a, "x.safetensors", "--report", "r")
    done("card", merged, "--barrier", "r/report.json")
    for share in (0.3, 0.7):
        child = ("--weights", f"{1 - share},{share}", "-o", f"{share}.safetensors")
        done("merge", a, "x.safetensors", "--method", "none", "--repair", "none", *child)
    others = [(merged, a), ("0.3.safetensors", "0.7.safetensors"), (a, a), ("x.safetensors", b)]
    for n, (one, other) in enumerate(others):  # children of its parents, or one parent twice
        done(*barrier, one, other, "--report", f"r{n}")
        refused(2, "card", merged, "--barrier", f"r{n}/report.json", "--force", says="is on other models")


def test_a_report_that_names_no_models_is_on_none_of_its_parents(merged, trained, done, refused, tmp_path):
    done("barrier", *trained, *QUICK, "--json-file", "r.json")
    told = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "none.json").write_text(json.dumps(told | {"inputs": []}))
    refused(2, "card", merged, "--barrier", "none.json", says="is on other models")


def test_a_report_on_other_models_is_refused(merged, pair, trained, done, refused):
    done("barrier", trained[0], trained[0], *QUICK, "--json-file", "r.json")
    done("merge", *pair, "--repair", "none", "-o", "other.safetensors", "--no-prove")
    refused(2, "card", "other.safetensors", "--barrier", "r.json", says="is on other models")


def test_a_model_that_was_not_merged_has_no_card(trained, refused):
    refused(2, "card", trained[0], says="does not record that it was merged")


def test_a_card_that_is_there_stays(merged, refused, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    refused(2, "card", merged, says="README.md exists")


@pytest.mark.parametrize("missing", ["--recipe", "--barrier"])
def test_what_cannot_be_read_is_told(merged, refused, missing):
    refused(2, "card", merged, missing, "nowhere", says=f"{missing} nowhere: no such file")


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
@pytest.mark.sweep
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
    assert {parent["name"] for parent in parents} == {
        word for word in command if word.endswith(".safetensors")
    }
    for one in [*content["subject"], *parents]:
        assert hashlib.sha256((tmp_path / one["name"]).read_bytes()).hexdigest() == one["digest"]["sha256"]


NET = "from rebasin_cli.nets.mlp import from_shapes as made\n"


def sources(path):
    content = json.loads(path.read_text())
    return [one["name"] for one in content["predicate"]["buildDefinition"]["resolvedDependencies"]]


@pytest.mark.parametrize(
    "command",
    [
        ["merge", "a.safetensors", "b.safetensors", "--perm", "p.perm.safetensors", "--repair", "none"],
        ["merge", "a.safetensors", "b.safetensors", "--init", "p.perm.safetensors", "--repair", "none",
         "--method", "ste-mm", "--data", "digits", "--epochs", "1", "--limit", "50"],
        ["average", "a.safetensors", "b.safetensors", "--copy-from", "c.safetensors"],
        ["align", "a.safetensors", "b.safetensors", "--spec", "./s.yaml", "--net", "net.py:made"],
        ["apply", "p.perm.safetensors", "b.safetensors", "--spec", "./s.yaml"],
        ["repair", "m.safetensors", "--endpoints", "a.safetensors", "b.safetensors", "--perm",
         "p.perm.safetensors", "--repair", "bias", "--spec", "s.yaml"],
        ["merge", "i.safetensors.index.json", "b.safetensors", "--method", "none", "--spec", "s.yaml",
         "--repair", "none"],
    ],
    ids=lambda command: " ".join(word for word in command if "." not in word),
)  # fmt: skip
def test_a_statement_names_every_file_that_was_read(pair, done, tmp_path, command):
    """Permutations, a start, what is copied from, a spec, code, shards of an index."""
    done("align", *pair, "-o", "p.safetensors", "-q")
    perm = ("--perm", "p.perm.safetensors", "--repair", "none")
    if "m.safetensors" in command:
        done("merge", *pair, *perm, "-o", "m.safetensors", "-q")
    if "i.safetensors.index.json" in command:
        done("merge", *pair, *perm, "-o", "i.safetensors", "--out-shard-size", "2KB", "-q")
    (tmp_path / "c.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes())
    (tmp_path / "s.yaml").write_bytes((library.folder() / "mlp.yaml").read_bytes())
    (tmp_path / "net.py").write_text(NET)
    done(*command, "-o", "o.safetensors", "--attest", "o.intoto.json")
    shards = [path.name for path in tmp_path.glob("i-0*.safetensors")] if "index" in command[1] else []
    files = [word.partition(":")[0].removeprefix("./") for word in command if "." in word]
    assert sorted(sources(tmp_path / "o.intoto.json")) == sorted([*files, *shards])


def test_a_statement_names_what_was_copied_into_a_folder(pair, done, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    merge = (
        "merge",
        "a.safetensors",
        "b.safetensors",
        "--method",
        "none",
        "--repair",
        "none",
        "--copy-files",
    )
    done(*merge, "-o", "made/", "--attest", "o.intoto.json")
    assert sources(tmp_path / "o.intoto.json") == ["a.safetensors", "b.safetensors", "config.json"]


@pytest.mark.parametrize(
    "command",
    [
        ["align", "a.safetensors", "b.safetensors", "-o", "b.safetensors"],
        ["align", "a.safetensors", "b.safetensors", "--init", "p.perm.safetensors", "-m", "ste-mm",
         "-o", "p.safetensors", "--data", "digits"],
        ["merge", "a.safetensors", "b.safetensors", "-o", "a.safetensors"],
        ["merge", "a.safetensors", "folder", "-o", "folder/"],
        ["apply", "p.perm.safetensors", "b.safetensors", "-o", "./b.safetensors"],
        ["repair", "p.safetensors", "--endpoints", "a.safetensors", "b.safetensors", "-o", "p.safetensors"],
    ],
    ids=lambda command: " ".join(word for word in command if "." not in word),
)  # fmt: skip
def test_a_statement_on_what_replaces_its_own_parent_is_refused(pair, done, refused, tmp_path, command):
    if any(word.startswith("p.") for word in command):
        done("align", *pair, "-o", "p.safetensors", "-q")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/model.safetensors").write_bytes((tmp_path / "b.safetensors").read_bytes())
    refused(2, *command, "--force", "--attest", "o.intoto.json", says="is read by this very command")


def test_a_statement_that_is_there_is_refused_before_any_work(pair, refused, tmp_path):
    (tmp_path / "o.intoto.json").write_text("mine")
    refused(
        2, "align", *pair, "-o", "o.safetensors", "--attest", "o.intoto.json", says="o.intoto.json exists"
    )
